"""Whole models, written as people write them: each is exported once and run at sizes the export has not seen."""

import math

import numpy as np
import pytest

import wayfare as wf
import wayfare.nn.functional as F
from tests.exporters.onnx.exporting import export, kinds, run
from wayfare import nn


def tensors_in(result):
    """The tensors of a result, in order."""
    if isinstance(result, wf.Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result
    return [t for part in parts for t in tensors_in(part)]


def agrees(path, model, *calls):
    """Does the file give what the model gives?"""
    if isinstance(model, nn.Module):
        model.eval()
    for call in calls:
        with wf.no_grad():
            wanted = tensors_in(model(*call))
        for got, right in zip(run(path, *[t.numpy() for t in tensors_in(call)]), wanted, strict=True):
            assert got.dtype == right.numpy().dtype
            np.testing.assert_allclose(got, right.numpy(), rtol=1e-4, atol=1e-5)


class Translator(nn.Module):
    """An encoder, attention, and a decoder that stops at the end-of-sentence token."""

    def __init__(self, words=20, size=8, longest=7):
        super().__init__()
        self.source, self.target = nn.Embedding(words, size), nn.Embedding(words, size)
        self.encoder = nn.GRU(size, size, batch_first=True)
        self.cell = nn.GRUCell(2 * size, size)
        self.out = nn.Linear(2 * size, words)
        self.longest = longest

    def forward(self, sentence):
        memory, h = self.encoder(self.source(sentence))
        h = h[0]
        word = wf.ones(sentence.shape[0], dtype=wf.int64)
        done = wf.zeros(sentence.shape[0], dtype=wf.bool)
        words = []
        while len(words) < self.longest and not done.all():
            share = (memory @ h.unsqueeze(-1)).squeeze(-1).softmax(-1)
            context = (share.unsqueeze(1) @ memory).squeeze(1)
            h = self.cell(wf.cat([self.target(word), context], -1), h)
            word = wf.where(done, 2, self.out(wf.cat([h, context], -1)).argmax(-1))
            done = done | (word == 2)
            words.append(word)
        return wf.stack(words, 1)


def test_a_translator_that_decodes_until_the_end(path):
    wf.manual_seed(0)
    model = Translator()
    model.out.bias.data[2] = 0.5
    examples = [(wf.randint(3, 20, (b, n)),) for b, n in ((2, 5), (1, 4), (1, 7), (1, 3), (3, 6))]
    export(model, examples, path, dynamic_axes={"sentence": {0: "batch", 1: "length"}})
    calls = [(wf.randint(3, 20, (b, n)),) for b, n in ((1, 1), (4, 9), (1, 2), (1, 8), (2, 5), (1, 6))]
    agrees(path, model, *calls)
    assert len({model(*call).shape[1] for call in calls}) > 1


class Tagger(nn.Module):
    """A BiLSTM with the best path through a lattice of tags: one loop forwards, one back through what it kept."""

    def __init__(self, words=30, size=6, tags=4):
        super().__init__()
        self.embed = nn.Embedding(words, size)
        self.lstm = nn.LSTM(size, size, batch_first=True, bidirectional=True)
        self.scores = nn.Linear(2 * size, tags)
        self.steps = nn.Parameter(wf.randn(tags, tags))

    def forward(self, words):
        scores = self.scores(self.lstm(self.embed(words))[0])
        best, came_from = scores[:, 0], []
        for t in range(1, words.shape[1]):
            best, place = (best.unsqueeze(2) + self.steps).max(1)
            best = best + scores[:, t]
            came_from.append(place)
        total, tag = best.max(1)
        tags = [tag]
        for place in reversed(came_from):
            tag = place.gather(1, tag.unsqueeze(1)).squeeze(1)
            tags.append(tag)
        return wf.stack(tags[::-1], 1), total


def test_a_tagger_with_the_best_path(path):
    wf.manual_seed(1)
    model = Tagger()
    export(model, (wf.randint(0, 30, (2, 6)),), path, dynamic_axes={"words": {0: "batch", 1: "length"}})
    assert kinds(path).count("Loop") == 2
    agrees(path, model, *[(wf.randint(0, 30, shape),) for shape in ((1, 1), (3, 2), (1, 3), (2, 25))])


class Attention(nn.Module):
    """Causal attention that goes on from kept keys and values."""

    def __init__(self, size=16, heads=4):
        super().__init__()
        self.heads = heads
        self.norm, self.mixed, self.out = nn.LayerNorm(size), nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x, kept):
        batch, length, size = x.shape
        q, k, v = (t.view(batch, length, self.heads, size // self.heads).transpose(1, 2)
                   for t in self.mixed(self.norm(x)).split(size, 2))  # fmt: skip
        k, v = wf.cat([kept[0], k], 2), wf.cat([kept[1], v], 2)
        seen = k.shape[2]
        mask = wf.tril(wf.ones(seen, seen))[seen - length :]
        weights = (q @ k.transpose(2, 3) / math.sqrt(size // self.heads)).masked_fill(mask == 0, float("-inf"))
        mixed = (weights.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, size)
        return x + self.out(mixed), (k, v)


class Writer(nn.Module):
    """A step of a language model: new tokens, and the keys and values of those before."""

    def __init__(self, words=40, size=16, layers=2, longest=64):
        super().__init__()
        self.words, self.places = nn.Embedding(words, size), nn.Embedding(longest, size)
        self.layers = nn.ModuleList([Attention(size) for _ in range(layers)])
        self.out = nn.Linear(size, words)

    def forward(self, tokens, kept):
        before = kept[0][0].shape[2]
        assert before + tokens.shape[1] <= self.places.num_embeddings, f"too long: {before}"
        x = self.words(tokens) + self.places(wf.arange(before, before + tokens.shape[1]))
        now = []
        for layer, mine in zip(self.layers, kept, strict=True):
            x, mine = layer(x, mine)
            now.append(mine)
        return {"scores": self.out(x[:, -1]), "kept": now}


def test_a_language_model_that_goes_on_from_what_it_kept(path):
    wf.manual_seed(2)

    def call(batch, before, new):
        return (wf.randint(0, 40, (batch, new)), [(wf.randn(batch, 4, before, 4), wf.randn(batch, 4, before, 4))] * 2)

    axes = {"tokens": {0: "batch", 1: "new"}, **{f"kept_{i}": {0: "batch", 2: "before"} for i in range(4)}}
    model = Writer()
    export(model, call(2, 5, 3), path, dynamic_axes=axes)
    agrees(path, model, call(1, 1, 1), call(3, 17, 4), call(1, 50, 2))


class Segmenter(nn.Module):
    """A small U-Net: what was made smaller is brought back to the size it had, odd sizes too."""

    def __init__(self):
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.norm, self.up = nn.BatchNorm2d(8), nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.out = nn.Conv2d(20, 2, 1)

    def forward(self, image):
        wide = self.down(image).relu()
        deep = self.norm(self.deep(F.max_pool2d(wide, 2))).relu()
        smooth = F.interpolate(deep, size=wide.shape[2:], mode="bilinear", align_corners=False)
        up = self.up(deep)
        high, broad = wide.size(2) - up.size(2), wide.size(3) - up.size(3)
        up = F.pad(up, [broad // 2, broad - broad // 2, high // 2, high - high // 2])
        return self.out(wf.cat([smooth, wide, up], 1))


def test_a_unet_takes_images_of_odd_sizes(path):
    wf.manual_seed(3)
    model = Segmenter()
    export(model, (wf.randn(1, 3, 13, 17),), path, dynamic_axes={"image": {0: "batch", 2: "height", 3: "width"}})
    agrees(path, model, *[(wf.randn(*shape),) for shape in ((2, 3, 8, 8), (1, 3, 31, 22), (1, 3, 5, 50))])


@pytest.mark.parametrize(("mode", "aligned"), [
    ("nearest", None), ("nearest-exact", None), ("bilinear", True), ("bilinear", False), ("bicubic", True),
    ("bicubic", False),
])  # fmt: skip
def test_resizing_to_a_size_that_varies(path, mode, aligned):
    def f(x, like):
        return F.interpolate(x, size=like.shape[2:], mode=mode, align_corners=aligned)

    axes = {"x": {2: "height", 3: "width"}, "like": {2: "high", 3: "wide"}}
    export(f, (wf.randn(1, 2, 5, 6), wf.randn(1, 1, 9, 4)), path, dynamic_axes=axes)
    for sizes in ((3, 4, 7, 9), (8, 9, 3, 1), (1, 1, 5, 5), (6, 6, 6, 6)):
        agrees(path, f, (wf.randn(1, 2, *sizes[:2]), wf.randn(1, 1, *sizes[2:])))


class GraphAttention(nn.Module):
    """Nodes that attend to those with an edge to them: a softmax over the edges of each node."""

    def __init__(self, size=5, heads=3, each=4):
        super().__init__()
        self.heads = heads
        self.lift = nn.Linear(size, heads * each, bias=False)
        self.sent, self.got = nn.Parameter(wf.randn(heads, each)), nn.Parameter(wf.randn(heads, each))

    def forward(self, nodes, edges):
        count = nodes.size(0)
        h = self.lift(nodes).view(count, self.heads, -1)
        source, target = edges
        score = F.leaky_relu((h * self.sent).sum(-1)[source] + (h * self.got).sum(-1)[target], 0.2)
        at = target.unsqueeze(-1).expand_as(score)
        most = wf.full((count, self.heads), -1e9).scatter_reduce(0, at, score, reduce="amax")
        weight = (score - most[target]).exp()
        weight = weight / wf.zeros(count, self.heads).scatter_add(0, at, weight)[target]
        mixed = wf.zeros_like(h).index_add(0, target, h[source] * weight.unsqueeze(-1))
        return F.elu(mixed.reshape(count, -1))


def test_a_graph_with_any_number_of_nodes_and_edges(path):
    wf.manual_seed(4)

    def graph(nodes, edges):
        return wf.randn(nodes, 5), wf.randint(0, nodes, (2, edges))

    model = GraphAttention()
    export(model, graph(6, 9), path, dynamic_axes={"nodes": {0: "nodes"}, "edges": {1: "edges"}})
    agrees(path, model, graph(1, 1), graph(4, 30), graph(50, 3))


def test_a_differential_equation_in_steps_that_are_given(path):
    wf.manual_seed(5)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))

    def solve(y, times):
        states = [y]
        for step in times[1:] - times[:-1]:
            middle = y + step / 2 * net(y)
            y = y + step * net(middle)
            states.append(y)
        return wf.stack(states, 1), sum(s.square().sum(1) for s in states) / len(states)

    axes = {"y": {0: "batch"}, "times": {0: "times"}}
    export(solve, (wf.randn(2, 3), wf.linspace(0, 1, 6)), path, dynamic_axes=axes)
    agrees(path, solve, *[(wf.randn(b, 3), wf.linspace(0, 2, n)) for b, n in ((1, 2), (4, 3), (2, 20))])


def test_the_nearest_neighbours_of_few_points(path):
    def vote(queries, points, labels):
        near, at = wf.cdist(queries, points).topk(min(3, points.shape[0]), largest=False)
        return (F.one_hot(labels[at], 4) / (near + 1e-3).unsqueeze(-1)).sum(1).argmax(-1)

    def call(queries, points):
        return wf.randn(queries, 2), wf.randn(points, 2), wf.randint(0, 4, (points,))

    wf.manual_seed(6)
    axes = {"queries": {0: "queries"}, "points": {0: "points"}, "labels": {0: "points"}}
    export(vote, [call(3, 8), call(4, 2)], path, dynamic_axes=axes)
    agrees(path, vote, call(1, 1), call(2, 2), call(5, 3), call(7, 40))


def test_code_for_one_example_under_map(path):
    wf.manual_seed(7)
    cell = nn.GRUCell(4, 4)

    def encode(sequence):
        h = wf.zeros(4)
        for row in sequence:
            h = cell(row, h)
        return h

    def model(batch):
        return wf.stack(wf.map(encode, list(batch)))

    export(model, (wf.randn(3, 5, 4),), path, dynamic_axes={"batch": {0: "batch", 1: "length"}})
    assert kinds(path).count("Loop") == 2
    agrees(path, model, (wf.randn(1, 2, 4),), (wf.randn(4, 7, 4),))
