"""The world outside Python: clocks, files, the environment, contexts."""

from tests.compiler.hostile.harness import family

case = family("python")

# -- the outside world ------------------------------------------------------------------------------------------------

case("time", """
import time
now = 1.0
patch(time, 'time', lambda: now)
@way
def f(x):
    return x * time.time()
""", "now = 2.0", "each: now = float(k)")

case("datetime", """
import datetime
class D(datetime.datetime):
    hour_now = 3
    @classmethod
    def now(cls):
        return cls(2020, 1, 1, cls.hour_now)
patch(datetime, 'datetime', D)
@way
def f(x):
    return x * datetime.datetime.now().hour
""", "D.hour_now = 5", "each: D.hour_now = k")

case("random", """
import random
@way
def f(x):
    return x * random.random() + random.choice([1.0, 2.0])
""", "random.seed(3)")

case("own random", """
import random
dice = random.Random(3)
@way
def f(x):
    return x * dice.gauss(0, 1)
""", "dice.seed(3)")

case("numpy random", """
@way
def f(x):
    return x * np.random.rand()
""", "np.random.seed(3)")

case("numpy generator", """
dice = np.random.default_rng(3)
@way
def f(x):
    return x * dice.normal()
""", "dice = np.random.default_rng(3)")

case("environment", """
import os
os.environ['HOSTILE'] = '2'
@way
def f(x):
    return x * float(os.environ['HOSTILE'])
""", "os.environ['HOSTILE'] = '3'", "os.environ.update(HOSTILE='4')")

case("getenv", """
import os
from os import getenv
@way
def f(x):
    return x * float(getenv('HOSTILE', '2'))
""", "os.environ['HOSTILE'] = '3'", ("os.environ['HOSTILE'] = '3'", "del os.environ['HOSTILE']"))

case("environment through a name", """
import os
env = os.environ
@way
def f(x):
    return x * (3 if 'HOSTILE' in env else 2) + len(env.get('HOSTILE', ''))
""", "env['HOSTILE'] = 'abc'")

case("file", """
import tempfile, pathlib
__note = pathlib.Path(tempfile.mktemp())
undo(lambda n=__note: n.unlink())
__note.write_text('2')
@way
def f(x):
    return x * float(__note.read_text())
""", "__note.write_text('3')", "each: __note.write_text(str(k))")

case("open", """
import tempfile, os
__note = tempfile.mktemp()
undo(lambda n=__note: os.remove(n))
def put(text):
    with open(__note, 'w') as file:
        file.write(text)
put('2')
@way
def f(x):
    with open(__note) as file:
        return x * float(file.read())
""", "put('3')", "each: put(str(k))")

case("path exists", """
import tempfile, os, pathlib
__path = pathlib.Path(tempfile.mktemp())
undo(lambda p=__path: p.unlink(missing_ok=True))
@way
def f(x):
    return x * 2 if __path.exists() else x
""", "__path.touch()", ("__path.touch()", "__path.unlink()"))

case("os.path.exists", """
import tempfile, os
__path = tempfile.mktemp()
undo(lambda p=__path: os.path.exists(p) and os.remove(p))
@way
def f(x):
    return x * 2 if os.path.exists(__path) else x
""", "open(__path, 'w').close()")

case("working directory", """
import os
here = os.getcwd()
undo(lambda h=here: os.chdir(h))
@way
def f(x):
    return x * len(os.getcwd())
""", "os.chdir('/')")

case("decimal context", """
import decimal
__c = decimal.getcontext().copy()
undo(lambda c=__c: decimal.setcontext(c))
@way
def f(x):
    return x * float(decimal.Decimal(1) / decimal.Decimal(3))
""", "decimal.getcontext().prec = 3", "decimal.getcontext().rounding = 'ROUND_UP'; decimal.getcontext().prec = 2")

case("fractions", """
import fractions
q = fractions.Fraction(1, 3)
@way
def f(x):
    return x * float(q)
""", "q = fractions.Fraction(2, 3)", "q += 1")

case("logger level", """
import logging
logger = logging.getLogger('hostile')
logger.setLevel(logging.INFO)
@way
def f(x):
    return x * 2 if logger.isEnabledFor(logging.DEBUG) else x
""", "logger.setLevel(logging.DEBUG)", ("logger.setLevel(10)", "logger.setLevel(30)"))

case("root logger level", """
import logging
logger = logging.getLogger('hostile2')
__old = logging.root.level
undo(lambda o=__old: logging.root.setLevel(o))
@way
def f(x):
    return x * logger.getEffectiveLevel()
""", "logging.root.setLevel(10)")

case("recursion limit", """
import sys
__old = sys.getrecursionlimit()
undo(lambda o=__old: sys.setrecursionlimit(o))
@way
def f(x):
    return x * sys.getrecursionlimit()
""", "sys.setrecursionlimit(5000)")
