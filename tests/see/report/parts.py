"""What the tests of reports share: a reader of the page's structure, and a small model with all a report needs."""

from html.parser import HTMLParser

import wayfare as wf
from wayfare import nn

SECTIONS = ["flow", "training", "prediction", "graph", "metrics", "ways", "batching", "costs"]
VOID = {"meta", "br", "hr", "img"}


class Reader(HTMLParser):
    """A page as what is in it: sections with their text, all elements, and whether every element is closed."""

    def __init__(self, page):
        super().__init__()
        self.open, self.elements, self.sections, self.absent = [], [], {}, []
        self._section = None
        self.feed(page)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.elements.append((tag, attrs))
        if tag in VOID:
            return
        self.open.append(tag)
        if tag == "section":
            self._section = attrs["id"]
            self.sections[self._section] = ""
            if attrs.get("class") == "absent":
                self.absent.append(self._section)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "section":
            self._section = None

    def handle_data(self, data):
        if self._section is not None and self.open[-1] not in ("script", "style"):
            self.sections[self._section] += data

    def named(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


class Net(nn.Module):
    """Two layers with a normalisation that counts, and dropout."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.5)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.dropout(self.norm(wf.relu(self.first(x)))))


def a_task(seed=0):
    """A model, a batch and its loss."""
    wf.manual_seed(seed)
    model = Net()
    x = wf.randn(12, 4)
    return model, (x, x[:, :3].argmax(1)), nn.functional.cross_entropy


def a_history(epochs=4):
    return wf.train.History([
        {"epoch": k, "loss": 1 / k, "acc": 1 - 0.5 / k, "validation loss": 1.1 / k, "validation acc": 1 - 0.6 / k,
         "iterations": 5, "seconds": 0.5, "seconds per iteration": 0.1, "peak memory": 10**8, "learning rate": 0.1,
         "gradient norms": {"first.weight": 1.0 / k, "last.weight": 0.1 / k}}
        for k in range(1, epochs + 1)
    ])  # fmt: skip
