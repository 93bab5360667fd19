"""Small versions of the programs people learn PyTorch with: text, graphs and policies, with the same weights."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

from tests.oracle.snippets import Cases
from tests.oracle.tutorial_parts import agree_on, fixed, numbers, state

case = Cases()


@case
def char_rnn(m):
    nn = m.nn

    class RNN(nn.Module):
        def __init__(self, inputs, hidden, outputs):
            super(RNN, self).__init__()  # noqa: UP008 - as the tutorial has it
            self.hidden_size = hidden
            self.i2h = nn.Linear(inputs + hidden, hidden)
            self.i2o = nn.Linear(inputs + hidden, outputs)
            self.softmax = nn.LogSoftmax(dim=1)

        def forward(self, input, hidden):
            combined = m.cat((input, hidden), 1)
            return self.softmax(self.i2o(combined)), self.i2h(combined).tanh()

        def init_hidden(self):
            return m.zeros(1, self.hidden_size, dtype=m.float64)

    rnn, criterion, losses = fixed(m, RNN(5, 6, 3)), nn.NLLLoss(), []
    for word, label in (("abca", 0), ("eed", 2), ("cab", 1)):
        line = m.zeros(len(word), 1, 5, dtype=m.float64)
        for at, letter in enumerate(word):
            line[at][0]["abcde".find(letter)] = 1
        hidden = rnn.init_hidden()
        rnn.zero_grad()
        for at in range(line.size()[0]):
            output, hidden = rnn(line[at], hidden)
        loss = criterion(output, m.tensor([label], dtype=m.long))
        loss.backward()
        for p in rnn.parameters():
            p.data.add_(p.grad.data, alpha=-0.05)
        top_n, top_i = output.topk(1)
        losses += [loss.item(), top_n.item(), top_i[0].item()]
    return losses, state(rnn)


@case
def seq2seq_with_attention(m):
    nn, F = m.nn, m.nn.functional

    class Decoder(nn.Module):
        def __init__(self, size, words):
            super().__init__()
            self.embedding, self.gru = nn.Embedding(words, size), nn.GRU(2 * size, size, batch_first=True)
            self.Wa, self.Ua, self.Va = nn.Linear(size, size), nn.Linear(size, size), nn.Linear(size, 1)
            self.out = nn.Linear(size, words)

        def forward(self, encoded, hidden, target=None):
            token = m.empty(encoded.size(0), 1, dtype=m.long).fill_(0)
            outputs, weights = [], []
            for at in range(4):
                query = hidden.permute(1, 0, 2)
                scores = self.Va(m.tanh(self.Wa(query) + self.Ua(encoded))).squeeze(2).unsqueeze(1)
                weight = F.softmax(scores, dim=-1)
                inputs = m.cat((self.embedding(token), m.bmm(weight, encoded)), dim=2)
                output, hidden = self.gru(inputs, hidden)
                output = self.out(output)
                outputs.append(output)
                weights.append(weight)
                if target is not None:
                    token = target[:, at].unsqueeze(1)
                else:
                    _, topi = output.topk(1)
                    token = topi.squeeze(-1).detach()
            return F.log_softmax(m.cat(outputs, dim=1), dim=-1), hidden, m.cat(weights, dim=1)

    embedding = fixed(m, nn.Embedding(7, 6))
    encoder, decoder = fixed(m, nn.GRU(6, 6, batch_first=True)), fixed(m, Decoder(6, 7))
    parameters = [*encoder.parameters(), *decoder.parameters()]
    optimizer, criterion, losses = m.optim.Adam(parameters, lr=0.01), nn.NLLLoss(), []
    source, target = m.tensor([[1, 2, 3, 4], [4, 3, 0, 1]]), m.tensor([[1, 2, 3, 0], [5, 6, 1, 0]])
    for teacher in (True, False, True):
        optimizer.zero_grad()
        encoded, hidden = encoder(embedding(source))
        outputs, _, weights = decoder(encoded, hidden, target if teacher else None)
        loss = criterion(outputs.view(-1, outputs.size(-1)), target.view(-1))
        loss.backward()
        norm = m.nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        losses += [loss.item(), norm.item(), weights.sum().item()]
    return losses, state(decoder), [p.grad is None for p in embedding.parameters()]


@case
def reinforce(m):
    nn, F = m.nn, m.nn.functional
    policy = fixed(m, nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    optimizer, eps, told = m.optim.Adam(policy.parameters(), lr=1e-2), 1e-8, []
    for episode in range(2):
        log_probs, rewards, returns, R = [], [], [], 0
        for step in range(5):
            log_p = F.log_softmax(policy(numbers(m, 1, 4, start=step + episode)), dim=1)
            action = log_p.argmax(1)
            log_probs.append(log_p.gather(1, action.unsqueeze(1)).squeeze(1))
            rewards.append(float(action.item()) + step)
        for r in rewards[::-1]:
            R = r + 0.99 * R
            returns.insert(0, R)
        returns = m.tensor(returns, dtype=m.float64)
        returns = (returns - returns.mean()) / (returns.std() + eps)
        loss = m.cat([-log_prob * R for log_prob, R in zip(log_probs, returns, strict=True)]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told.append(loss.item())
    return told, state(policy)


@case
def bilstm_crf(m):
    nn = m.nn
    start, stop = 3, 4

    def log_sum_exp(vec):
        max_score = vec[0, vec.argmax(1).item()]
        broadcast = max_score.view(1, -1).expand(1, vec.size()[1])
        return max_score + m.log(m.sum(m.exp(vec - broadcast)))

    class CRF(nn.Module):
        def __init__(self):
            super().__init__()
            self.embeds, self.lstm = nn.Embedding(6, 4), nn.LSTM(4, 3, num_layers=1, bidirectional=True)
            self.hidden2tag = nn.Linear(6, 5)
            self.transitions = nn.Parameter(m.randn(5, 5))

        def features(self, sentence):
            hidden = (numbers(m, 2, 1, 3), numbers(m, 2, 1, 3, start=1.0))
            out, _ = self.lstm(self.embeds(sentence).view(len(sentence), 1, -1), hidden)
            return self.hidden2tag(out.view(len(sentence), 6))

        def partition(self, feats):
            forward_var = m.full((1, 5), -10000.0, dtype=m.float64)
            forward_var[0][start] = 0.0
            for feat in feats:
                alphas = []
                for tag in range(5):
                    emit = feat[tag].view(1, -1).expand(1, 5)
                    alphas.append(log_sum_exp(forward_var + self.transitions[tag].view(1, -1) + emit).view(1))
                forward_var = m.cat(alphas).view(1, -1)
            return log_sum_exp(forward_var + self.transitions[stop])

        def gold(self, feats, tags):
            score = m.zeros(1, dtype=m.float64)
            tags = m.cat([m.tensor([start], dtype=m.long), tags])
            for i, feat in enumerate(feats):
                score = score + self.transitions[tags[i + 1], tags[i]] + feat[tags[i + 1]]
            return score + self.transitions[stop, tags[-1]]

        def viterbi(self, feats):
            forward_var, back = m.full((1, 5), -10000.0, dtype=m.float64), []
            forward_var[0][start] = 0
            for feat in feats:
                best = [(forward_var + self.transitions[tag]).max(1) for tag in range(5)]
                back.append([b[1].item() for b in best])
                forward_var = (m.cat([b[0].view(1) for b in best]) + feat).view(1, -1)
            return forward_var.max().item(), back

    model = CRF()
    model.double()
    fixed(m, model)
    model.transitions.data[start, :] = -10000
    model.transitions.data[:, stop] = -10000
    optimizer, losses = m.optim.SGD(model.parameters(), lr=0.01, weight_decay=1e-4), []
    sentence, tags = m.tensor([0, 3, 5, 2]), m.tensor([0, 1, 2, 0])
    for _ in range(2):
        model.zero_grad()
        feats = model.features(sentence)
        loss = model.partition(feats) - model.gold(feats, tags)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with m.no_grad():
        return losses, model.viterbi(model.features(sentence)), state(model)


@case
def transformer_with_positions(m):
    nn = m.nn

    class PositionalEncoding(nn.Module):
        def __init__(self, d_model, max_len=10):
            super().__init__()
            position = m.arange(max_len).unsqueeze(1)
            div_term = m.exp(m.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
            pe = m.zeros(max_len, 1, d_model)
            pe[:, 0, 0::2] = m.sin(position * div_term)
            pe[:, 0, 1::2] = m.cos(position * div_term)
            self.register_buffer("pe", pe)

        def forward(self, x):
            return x + self.pe[: x.size(0)]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.pos_encoder = PositionalEncoding(8)
            layers = nn.TransformerEncoderLayer(8, 2, 16, 0.0)
            self.encoder, self.embedding = nn.TransformerEncoder(layers, 2), nn.Embedding(9, 8)
            self.linear = nn.Linear(8, 9)

        def forward(self, src, src_mask=None):
            src = self.pos_encoder(self.embedding(src) * math.sqrt(8))
            if src_mask is None:
                src_mask = nn.Transformer.generate_square_subsequent_mask(len(src))
            return self.linear(self.encoder(src, src_mask.double()))

    model = fixed(m, Model())
    optimizer = m.optim.SGD(model.parameters(), lr=0.5)
    scheduler, losses = m.optim.lr_scheduler.StepLR(optimizer, 1.0, gamma=0.95), []
    text = m.arange(20).remainder(9).view(2, -1).t().contiguous()
    for _ in range(2):
        output = model(text[:5])
        loss = nn.CrossEntropyLoss()(output.view(-1, 9), text[1:6].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        m.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        losses += [loss.item(), scheduler.get_last_lr()[0]]
    return losses, state(model)


@case
def loader_with_collate(m):
    data = m.utils.data

    class Sentences(data.Dataset):
        def __init__(self):
            self.rows = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10], [11]]

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, i):
            return m.tensor(self.rows[i]), len(self.rows[i]) % 2

    def collate(batch):
        batch.sort(key=lambda pair: len(pair[0]), reverse=True)
        rows, labels = zip(*batch, strict=True)
        lengths = m.tensor([len(r) for r in rows])
        return m.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1), m.tensor(labels), lengths

    loader = data.DataLoader(Sentences(), batch_size=2, shuffle=False, collate_fn=collate, num_workers=0)
    embedding, lstm, told = fixed(m, m.nn.Embedding(12, 3)), fixed(m, m.nn.LSTM(3, 2, batch_first=True)), []
    for padded, labels, lengths in loader:
        packed = m.nn.utils.rnn.pack_padded_sequence(embedding(padded.clamp(min=0)), lengths, batch_first=True)
        out, (h, _) = lstm(packed)
        out, sizes = m.nn.utils.rnn.pad_packed_sequence(out, batch_first=True, padding_value=0.5)
        told += [padded, labels, out.detach(), h[-1].detach(), sizes]
    plain = data.DataLoader([{"x": m.ones(2) * i, "name": str(i)} for i in range(3)], batch_size=2, drop_last=True)
    subset = data.Subset(Sentences(), [3, 0])
    return told, [sorted(b) + [b["x"], b["name"]] for b in plain], [len(r[0]) for r in subset], len(loader)


@case
def gcn(m):
    nn, F = m.nn, m.nn.functional

    class GraphConvolution(nn.Module):
        def __init__(self, inside, outside, bias=True):
            super().__init__()
            self.weight = nn.parameter.Parameter(m.empty(inside, outside))
            if bias:
                self.bias = nn.parameter.Parameter(m.empty(outside))
            else:
                self.register_parameter("bias", None)
            self.reset_parameters()

        def reset_parameters(self):
            stdv = 1.0 / math.sqrt(self.weight.size(1))
            self.weight.data.uniform_(-stdv, stdv)
            if self.bias is not None:
                self.bias.data.uniform_(-stdv, stdv)

        def forward(self, input, adj):
            output = m.mm(adj, m.mm(input, self.weight))
            return output + self.bias if self.bias is not None else output

        def __repr__(self):
            return self.__class__.__name__

    class GCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.gc1, self.gc2, self.dropout = GraphConvolution(4, 5), GraphConvolution(5, 3, bias=False), 0.0

        def forward(self, x, adj):
            x = F.dropout(F.relu(self.gc1(x, adj)), self.dropout, training=self.training)
            return F.log_softmax(self.gc2(x, adj), dim=1)

    edges = m.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])
    adj = m.zeros(5, 5, dtype=m.float64)
    adj[edges[0], edges[1]] = 1
    adj = adj + adj.t().mul(adj.t() > adj) - adj.mul(adj.t() > adj) + m.eye(5, dtype=m.float64)
    adj = m.diag(adj.sum(1).pow(-1)).mm(adj)
    model = fixed(m, GCN())
    optimizer = m.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    labels, train, told = m.tensor([0, 1, 2, 0, 1]), m.arange(3), []
    for _ in range(3):
        model.train()
        optimizer.zero_grad()
        output = model(numbers(m, 5, 4), adj)
        loss = F.nll_loss(output[train], labels[train])
        loss.backward()
        optimizer.step()
        model.eval()
        preds = output.max(1)[1].type_as(labels)
        told += [loss.item(), preds.eq(labels).double().sum().item() / len(labels)]
    return told, repr(model), state(model)


@pytest.mark.parametrize("snippet", case.values(), ids=list(case))
def test_programs_agree(snippet):
    agree_on(snippet)
