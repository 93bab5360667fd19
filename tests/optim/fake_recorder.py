"""A recorder for tests: it runs everything for real, and remembers call-outs, fused updates and draws."""

from contextlib import contextmanager

from wayfare.compiler.recorder import Recorder
from wayfare.core.dispatch import apply
from wayfare.core.executor import Interceptor
from wayfare.core.mode import changed_mode


class GaveUp(Exception):
    pass


class FakeRecorder(Interceptor):
    """Runs everything for real, and remembers call-outs, fused updates and draws."""

    works_on_rows = False

    def __init__(self):
        self.calls, self.updates, self.draws, self.ops, self._inside = [], [], [], [], None

    @contextmanager
    def calling(self, call):
        self.calls.append(call)
        before, self._inside = self._inside, call
        yield
        self._inside = before

    def call_out(self, make, run):
        call = make()
        with self.calling(call):
            return call.take()

    def update(self, update, written, read, numbers):
        numbers = tuple(map(float, numbers))
        self.updates.append((self._inside, update, written, read, numbers))
        update([t._array for t in written], [t._array for t in read], numbers)

    def draw(self, generator, key):
        self.draws.append((generator, key))

    def give_up(self, reason):
        raise GaveUp(reason)

    # As the real one does it.
    not_replayable, step_state_used = Recorder.not_replayable, Recorder.step_state_used
    generator_state_read, generator_state_set = Recorder.generator_state_read, Recorder.generator_state_set

    def is_contiguous(self, tensor):
        return tensor._array.flags.c_contiguous

    def apply(self, op, inputs, attrs):
        self.ops.append(op.name)
        with changed_mode(executor=None):
            return apply(op, inputs, attrs)

    def read(self, tensor, how):
        raise AssertionError(f"{how} looks at a value")

    def write(self, tensor, result, move):
        with changed_mode(executor=None):
            move(tensor, result)

    def replay(self):
        """Run the call-outs, then the updates with the new numbers, on what now lies in the recorded tensors."""
        fresh = {}
        for call in self.calls:
            assert call.ready(), call.reason
            fresh[id(call)] = call.run()
        for call, update, written, read, numbers in self.updates:
            numbers = numbers if call is None else fresh[id(call)].pop(0)
            update([t._array for t in written], [t._array for t in read], numbers)
        assert not any(fresh.values())


@contextmanager
def recording():
    made = FakeRecorder()
    with changed_mode(executor=made):
        yield made
