"""Several threads that call one compiled function."""

from tests.compiler.hostile.harness import family

case = family("functions")

case("threads by turns", """
import threading
w = num(4, grad=True)
n = [0]
@way
def g(x):
    return x * w
@way
def counted(x):
    n[0] += 1
    return x * n[0]
def f(x):
    out = []
    def work():
        out.append(g(x) + counted(x))
    if k % 2:
        t = threading.Thread(target=work)
        t.start()
        t.join()
    else:
        work()
    return out[0]
""", "w = num(4, seed=3, grad=True)", "w.data.zero_()", "n[0] = 5")

case("modes of another thread", """
import threading
w = num(4, grad=True)
@way
def g(x):
    return x * w
def f(x):
    out = []
    def work():
        with wf.no_grad():
            out.append(g(x))
    t = threading.Thread(target=work)
    t.start()
    t.join()
    return g(x), out[0]
""", "w = num(4, seed=3, grad=True)")

case("two threads at once", """
import threading
w = num(4, grad=True)
@way
def g(x):
    return (x * w).tanh().sum()
def f(x):
    out = [None] * 3
    def work(i):
        out[i] = [g(x * (i + 1)).detach() for _ in range(5)]
    ts = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    return out
""", "w = num(4, seed=3, grad=True)")
