"""State that the function itself changes: counters, stored activations, lists, iterators."""

from tests.compiler.hostile.harness import family

case = family("attributes")

# -- state that the function itself changes ------------------------------------------------------------------------

for name, source in [
    ("function attribute",
     "@way\ndef f(x):\n    f.calls += 1\n    return x * f.calls\nf.calls = 0\nlook = lambda: f.calls\n"),
    ("helper's attribute",
     "def h(x):\n    h.calls += 1\n    return x * 2\nh.calls = 0\n@way\ndef f(x):\n    return h(x)\n"),
    ("helper's cache",
     "def h(x):\n    h.cache.append(x.sum())\n    return x * len(h.cache)\nh.cache = []\n@way\ndef f(x):\n"
     "    return h(x)\n"),
    ("global", "count = 0\n@way\ndef f(x):\n    global count\n    count += 1\n    return x * count\n"),
    ("global tensor",
     "total = num(3, 4)\n@way\ndef f(x):\n    global total\n    total = total + x.detach()\n    "
     "return x * total\n"
     ""),
    ("nonlocal",
     "def make():\n    count = 0\n    @way\n    def f(x):\n        nonlocal count\n        count += 1\n"
     "        return x * count\n    return f\nf = make()\n"),
    ("nonlocal tensor",
     "def make():\n    mean = wf.zeros(3, 4)\n    @way\n    def f(x):\n        nonlocal mean\n"
     "        mean = 0.9 * mean + 0.1 * x.detach()\n        return x - mean\n    return f\nf = make()\n"),
    ("list appended", "log = []\n@way\ndef f(x):\n    log.append(x.detach() * 2)\n    return x * len(log)\n"),
    ("list appended, never read", "log = []\n@way\ndef f(x):\n    log.append(1)\n    return x * 2\n"),
    ("losses kept as numbers", "log = []\n@way\ndef f(x):\n    y = x.sum()\n    log.append(y.item())\n    return y\n"),
    ("dict counted", "log = {}\n@way\ndef f(x):\n    log['n'] = log.get('n', 0) + 1\n    return x * log['n']\n"),
    ("counter",
     "import collections\nlog = collections.Counter()\n@way\ndef f(x):\n"
     "    log['pos' if x.sum() > 0 else 'neg'] += 1\n    return x * 2\n"),
    ("default dict",
     "import collections\nlog = collections.defaultdict(list)\n@way\ndef f(x):\n    log['a'].append(x.shape)\n"
     "    return x * 2\n"),
    ("deque",
     "import collections\nlog = collections.deque(maxlen=3)\n@way\ndef f(x):\n    log.append(x.detach())\n"
     "    return x + sum(log)\n"),
    ("set", "log = set()\n@way\ndef f(x):\n    log.add(len(log))\n    return x * len(log)\n"),
    ("list popped", "todo = [float(i) for i in range(30)]\n@way\ndef f(x):\n    return x * todo.pop()\n"),
    ("list slot swapped",
     "slots = [num(4), num(4, seed=1)]\n@way\ndef f(x):\n    slots[0], slots[1] = slots[1], slots[0]\n"
     "    return x * slots[0]\n"),
    ("list slot replaced",
     "slots = [num(3, 4)]\n@way\ndef f(x):\n    slots[0] = x.detach() + slots[0]\n    return x * slots[0]\n"),
    ("iterator", "numbers = iter(range(100))\n@way\ndef f(x):\n    return x * next(numbers)\n"),
    ("itertools.count",
     "import itertools\nnumbers = itertools.count()\n@way\ndef f(x):\n    return x * next(numbers)\n"),
    ("cycle",
     "import itertools\nnumbers = itertools.cycle([1.0, 2.0, 3.0])\n@way\ndef f(x):\n    return x * "
     "next(numbers)\n"
     ""),
    ("generator",
     "def gen():\n    n = 0\n    while True:\n        n += 1\n        yield n\nnumbers = gen()\n@way\ndef f(x):\n"
     "    return x * next(numbers)\n"),
    ("class attribute", "class C:\n    calls = 0\n@way\ndef f(x):\n    C.calls += 1\n    return x * C.calls\n"),
    ("environment",
     "import os\nos.environ['HOSTILE'] = '1'\n@way\ndef f(x):\n"
     "    os.environ['HOSTILE'] = str(int(os.environ['HOSTILE']) + 1)\n    return x * "
     "int(os.environ['HOSTILE'])\n"
     ""), ("array counted", "log = np.zeros(3)\n@way\ndef f(x):\n    log[0] += 1\n    return x * log[0]\n"),
    ("array written, never read",
     "log = np.zeros(3)\n@way\ndef f(x):\n    log[1] = x.sum().item()\n    return x * 2\n"),
    ("exception kept",
     "log = []\n@way\ndef f(x):\n    try:\n        {}['a']\n    except KeyError as e:\n        log.append(e)\n"
     "    return x\n"),
    ("default argument", "@way\ndef f(x, log=[]):\n    log.append(1)\n    return x * len(log)\n"),
    ("memory of last call",
     "last = {}\n@way\ndef f(x):\n    old = last.get('x')\n    last['x'] = x\n"
     "    return x if old is None else x + old.detach()\n"),
]:  # fmt: skip
    case(f"own state: {name}", source)

COUNTS = """
class M({base}):
    def __init__(self):
        super().__init__()
        self.count = 0
        self.kept = None
        self.w = {w}
    def {method}(self, x):
        {body}
m = M()
f = way({f})
"""
for base, w, method, f in [
    ("nn.Module", "nn.Parameter(num(4))", "forward", "m"), ("object", "num(4, grad=True)", "run", "m.run"),
]:
    for name, body, *changes in [
    ("counter", "self.count += 1\n        return x * self.w", "m.count = 5"),
    ("counter used", "self.count += 1\n        return x * self.w * self.count", "m.count = 5"),
    ("counter branch", "self.count += 1\n        return x * self.w if self.count % 3 else x", "m.count = 2"),
    ("activation kept", "self.kept = x * self.w\n        return self.kept.sin()", "m.kept = None"),
    ("activation kept, detached", "self.kept = (x * self.w).detach()\n        return self.kept + x",
     "m.kept.zero_() if m.kept is not None else 0"),
    ("activation used again",
     "if self.kept is not None:\n            x = x + self.kept.detach()\n        self.kept = x * self.w\n"
     "        return self.kept", "m.kept = None", "m.kept = num(3, 4)"),
    ("shape kept", "self.kept = tuple(x.shape)\n        return x * self.w", "m.kept = 3"),
    ("new attribute", "self.fresh = x.shape[0]\n        return x * self.fresh", "m.fresh = 9"),
    ("deleted attribute", "self.gone = 1\n        del self.gone\n        return x * 2", "m.other = 1"),
    ("flag set",
     "if not hasattr(self, 'ready'):\n            self.ready = True\n            return x * 0\n"
     "        return x * self.w", "del m.ready"),
    ("lazy parameter", "if self.kept is None:\n            self.kept = num(4, seed=3)\n        return x * self.kept",
     "m.kept = None", "m.kept = num(1)"),
    ("list of activations", "self.kept = [x * 2, x * self.w]\n        return self.kept[0] + self.kept[1]",
     "m.kept = []"),
    ("setattr", "setattr(self, 'count', self.count + 1)\n        return x * self.count", "setattr(m, 'count', 0)"),
    ("weight replaced",
     "self.count += 1\n        with wf.no_grad():\n            self.w.mul_(0.9)\n        return x * self.w",
     "m.w.data = num(4, seed=8)"),
    ("float mean", "self.count = 0.9 * self.count + 0.1\n        return x * self.count", "m.count = 0.5"),
    ("item kept", "self.kept = x.sum().item()\n        return x * self.w", "m.kept = 1"),
    ("argument kept", "self.kept = x\n        return x * self.w", "m.kept = None"),
]:  # fmt: skip
        source = COUNTS.format(base=base, w=w, method=method, f=f, body=body)
        case(f"{base[-6:]}: {name}", source, *changes, fails=name == "flag set")
