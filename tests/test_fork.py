"""A fork in the middle of another thread's work: the child computes on, and right."""

import os
import subprocess
import sys
import textwrap

import pytest

SCRIPT = textwrap.dedent("""
    import os, sys, threading, time
    import wayfare as wf

    x = wf.ones(1500, 1500, requires_grad=True)

    def work(go_on):
        while go_on:
            (x * x).tanh().sum().backward()
            wf.fused(lambda a: a.exp() * 2)(wf.ones(5000))

    go_on = [True]
    threads = [threading.Thread(target=work, args=(go_on,)) for _ in range(2)]
    for t in threads:
        t.start()
    bad = 0
    for _ in range(8):
        time.sleep(0.01)
        child = os.fork()
        if child == 0:
            y = wf.full((300, 300), 2.0, requires_grad=True)
            (y * y).sum().backward()
            right = y.grad.mean().item() == 4.0
            os._exit(0 if right and wf.fused(lambda a: a + 1)(wf.ones(5000)).sum() == 10000 else 1)
        bad += os.waitpid(child, 0)[1] != 0
    go_on.clear()
    for t in threads:
        t.join()
    sys.exit(bad)
""")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_during_the_work_of_other_threads_computes():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT], timeout=100, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
