"""Where a random program for `wf.compile` lives: what it captures, how it is called, and what is changed between calls.

Every way of running a program has a world of its own, made alike: tensors (`c0` … `c3`, `pool`), rows of them in a list
(`slots`), an array whose memory `c2` shares, plain objects, lists and dictionaries, hooks and their handles, and, where
the program trains, a model with an optimiser and a schedule. `outer` is an optimiser that only the outside steps.
"""

from __future__ import annotations

import linecache
import warnings
import zlib

import wayfare as wf
from tests.compiler.program_parts import NAMES, Box, Keeper, Noting, new, softer
from tests.compiler.program_seen import Seen, ask, look, snapshot, written

FIRST, OTHER = {"a": 2, "b": 3, "c": 4}, {"a": 3, "b": 5, "c": 4}
# Sizes at which kernels run their vectorised loops, and what is left over.
LARGE, LARGER = {"a": 9, "b": 33, "c": 18}, {"a": 11, "b": 47, "c": 18}
CAPTURED = (
    "c0", "c1", "c2", "c3", "pool", "slots", "array", "views", "log", "settings", "box", "keeper", "heard", "handles",
    "net", "opt", "sched", "outer",
)  # fmt: skip
# How a call differs from the first: other values, other sizes, other flags, another mode.
CALLS = {
    "first": {}, "values": {"seed": 100, "k": 3, "scale": 0.5}, "sizes": {"other": True, "seed": 200},
    "flags": {"flip": True}, "no_grad": {"grad": False},
}  # fmt: skip
OPTIMIZERS = {
    "Adam": lambda p: wf.optim.Adam(p, lr=0.02, eps=1e-3),
    "AdamW": lambda p: wf.optim.AdamW(p, lr=0.02, eps=1e-3, weight_decay=0.1),
    "SGD": lambda p: wf.optim.SGD(p, lr=0.02, momentum=0.9),
    "RMSprop": lambda p: wf.optim.RMSprop(p, lr=0.01, eps=1e-3),
}


class World:
    """One way of running a program, with captured things of its own that live through all calls.

    With a `nudge`, all numbers are that much off, in proportion: what then comes out otherwise hangs on rounding.
    """

    def __init__(self, program, way, nudge=0.0):
        self.program, self.nudge, self.number, self.held = program, nudge, 0, {}
        dtype = program.dtype
        pool = self.new(9, (6, 3), dtype)
        array = self.new(10, (2, 3), dtype).numpy()
        captured = {
            "c0": self.new(7, (3,), dtype), "c1": self.new(8, (2, 3), dtype, True), "c2": wf.from_numpy(array),
            "c3": self.new(11, (3,), dtype, True), "pool": pool, "slots": [pool[0], pool[1]], "array": array,
            "views": [], "log": [], "settings": {"scale": 1.5}, "box": Box(), "keeper": type("Own", (Keeper,), {})(),
            "heard": [], "handles": [], "net": None, "opt": None, "sched": None,
        }  # fmt: skip
        # Not the usual epsilon: it would make steps of full length out of rounding errors.
        captured["outer"] = wf.optim.AdamW([captured["c1"], captured["c3"]], lr=0.05, eps=1e-3, weight_decay=0.2)
        if program.trains:
            wf.manual_seed(4)
            layers = wf.nn.BatchNorm1d(3), wf.nn.Linear(3, 3), wf.nn.Dropout(0.25), Noting()
            captured["net"] = wf.nn.Sequential(*layers).to(getattr(wf, dtype))
            captured["opt"] = OPTIMIZERS[program.optimizer](captured["net"].parameters())
            captured["sched"] = wf.optim.lr_scheduler.StepLR(captured["opt"], 2, gamma=0.8)
        source = program.source()
        title = f"<program {zlib.crc32(source.encode())}>"  # the same in all worlds: messages name it
        linecache.cache[title] = (len(source), None, source.splitlines(True), title)
        self.names = NAMES | captured | {"helper": way(softer), "kept": []}
        self.names["leaves_held"] = lambda: [leaf for leaf in self.held.values() if leaf.requires_grad]
        exec(compile(source, title, "exec"), self.names)
        self.function = self.names["make"](**captured) if program.closure else self.names["program"]
        self.call = self.names["call"] = way(self.function)
        # What a decorator would do: the function's name is the compiled one. In a closure it is the plain one.
        self.names["program"] = self.function if program.closure else self.call
        self.options = {}

    def new(self, seed, shape, dtype="float64", requires_grad=False):
        """A leaf, off by the nudge."""
        made = new(seed, shape, dtype, requires_grad)
        if self.nudge and dtype != "int64":
            by = max(self.nudge, 1e-6 if dtype == "float32" else 0.0)
            made.data.mul_(new(seed + 1, shape, dtype) * by + 1)
        return made

    def forget_gradients(self):
        """After a backward pass that failed half way: what it had added up by then is nobody's business."""
        for name in ("c1", "c3"):
            self.names[name].grad = None
        for leaf in self.held.values():
            leaf.grad = None
        if self.names["net"]:
            self.names["net"].zero_grad()

    def cut_gradients(self):
        """Gradients that have a history of their own would make it longer from call to call."""
        net = self.names["net"]
        for leaf in (self.names["c1"], self.names["c3"], *self.held.values(), *(net.parameters() if net else ())):
            if leaf.grad is not None and leaf.grad.requires_grad:
                leaf.grad = leaf.grad.detach()

    def given(self, how):
        """The arguments of the next call, by name: fresh, or made of memory that lives through all calls."""
        self.options = options = CALLS[how]
        seed, flip, other = options.get("seed", 0), options.get("flip", False), options.get("other", False)

        def made(own, shape, dtype, grad):
            return self.new(own + seed, shape, dtype, (grad != flip) and dtype != "int64")

        def held(own, shape, dtype, grad):
            key = own, shape, flip
            if key not in self.held:
                self.held[key] = made(own, shape, dtype, grad)
            return self.held[key]

        sizes = (LARGER if other else LARGE) if self.program.large else OTHER if other else FIRST
        names = dict(self.names) | sizes | {"new": made, "held": held, "number": self.number}
        exec("\n".join(self.program.arguments), names)
        return names

    def numbers(self):
        """The numbers a call is given: none, or others at each call."""
        k = self.options.get("k", 2)
        if self.program.numbers:
            return (k + self.number % 4, round(0.15 * (self.number % 7) + 0.05, 2))
        return (k,) if k != 2 else ()

    def change(self, statement):
        """Change something outside, between two calls."""
        seen, names = Seen(), self.names
        before = {name: names[name] for name in CAPTURED}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                exec(compile(statement, "<change>", "exec"), names)
            except Exception as error:
                seen.error = error
        if self.program.closure:
            cells = dict(zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True))
            for name, value in before.items():
                if names[name] is not value and name in cells:
                    cells[name].cell_contents = names[name]
        return seen

    def run(self, how):
        """One call, and all that can be seen after it."""
        if how not in CALLS:
            return self.change(how)
        self.names["settings"]["scale"] = CALLS[how].get("scale", 1.5)
        self.cut_gradients()
        given = self.given(how)
        inputs = [given[f"x{i}"] for i in range(self.program.inputs)]
        leaves = [value for name, value in given.items() if name[0] == "l" and name[1:].isdigit()]
        arranged = [{"first": inputs[0], "rest": inputs[1:]}] if self.program.nested else inputs
        wf.manual_seed(3)
        seen, result = Seen(), None
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                with wf.set_grad_enabled(self.options.get("grad", True)):
                    result = self.call(*arranged, *self.numbers())
            except Exception as error:
                seen.error = error
        self.number += 1
        seen.warnings = {str(w.message) for w in told if not _allowed(w)}
        seen.draws = wf.get_rng_state().tolist()
        whole = {"result": result, "inputs": arranged, "leaves": leaves} | self.state()
        seen.returned = look(whole)
        results = seen.returned.under(".result")
        if self.program.outside != "nothing" and seen.error is None:
            asked = [t for t in leaves if t.requires_grad] + [self.names["c1"], self.names["c3"]]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                seen.graph_error, seen.found = ask(results, asked, self.program.outside)
            seen.asked = look(whole)
        if self.number < 15:
            seen.refused = written(results)
            seen.after = snapshot((seen.asked or seen.returned).tensors)
        kept = self.names["kept"]
        kept += results
        del kept[4:-8]
        return seen

    def state(self):
        """All that a program may have changed, and that a user may look at."""
        names = self.names
        net, keeper = names["net"], names["keeper"]
        state = {name: names[name] for name in CAPTURED if name not in ("handles", "net", "opt", "sched", "outer")}
        state |= {"kept": names["kept"], "held": list(self.held.values()), "handles": len(names["handles"])}
        state["attributes"] = {key: getattr(names["program"], key, None) for key in ("steps", "cache")}
        state["class"] = {key: v for key, v in vars(type(keeper)).items() if isinstance(v, (int, float))}
        for key in ("outer", "opt"):
            if (optimizer := names[key]) is not None:
                groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
                listed = [p for group in optimizer.param_groups for p in group["params"]]
                state[key] = [groups, [optimizer.state.get(p, "nothing") for p in listed]]
        if net is not None:
            state["net"] = dict(net.named_parameters()) | dict(net.named_buffers())
            state["parts"] = [{k: v for k, v in vars(m).items() if k[0] != "_"} for m in net.modules()]
            state["sched"] = {k: v for k, v in names["sched"].state_dict().items() if k[0] != "_"}
        return state


def _allowed(warning):
    """NumPy's remarks, and that Python is run because something cannot be replayed: not that a plan was wrong."""
    text = str(warning.message)
    wrong = any(word in text for word in ("plan failed", "differs from plain Python", "self-check", "was wrong"))
    return warning.category is RuntimeWarning or (text.startswith("compile: ") and not wrong)
