"""Small versions of the programs people learn PyTorch with: images, training tricks, gradients of gradients."""

from __future__ import annotations

import copy
import functools

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

from tests.oracle.snippets import Cases
from tests.oracle.tutorial_parts import agree_on, fixed, numbers, state

case = Cases()


@case
def dcgan(m):
    nn = m.nn

    def weights_init(module):
        classname = module.__class__.__name__
        if classname.find("Conv") != -1:
            nn.init.constant_(module.weight.data, 0.05)
        elif classname.find("BatchNorm") != -1:
            nn.init.constant_(module.weight.data, 1.0)
            nn.init.constant_(module.bias.data, 0)

    generator = nn.Sequential(
        nn.ConvTranspose2d(4, 6, 4, 1, 0, bias=False), nn.BatchNorm2d(6), nn.ReLU(True),
        nn.ConvTranspose2d(6, 1, 4, 2, 1, bias=False), nn.Tanh(),
    )  # fmt: skip
    critic = nn.Sequential(
        nn.Conv2d(1, 4, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(4, 1, 4, 1, 0, bias=False),
        nn.Sigmoid(),
    )  # fmt: skip
    generator.apply(weights_init)
    fixed(m, critic.apply(weights_init))
    fixed(m, generator)
    criterion = nn.BCELoss()
    of_critic = m.optim.Adam(critic.parameters(), lr=0.01, betas=(0.5, 0.999))
    of_generator = m.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.999))
    told = []
    for step in range(2):
        real = numbers(m, 3, 1, 8, 8, start=step)
        critic.zero_grad()
        label = m.full((3,), 1.0, dtype=m.float64)
        error_real = criterion(critic(real).view(-1), label)
        error_real.backward()
        fake = generator(numbers(m, 3, 4, 1, 1, start=5 + step))
        label.fill_(0.0)
        output = critic(fake.detach()).view(-1)
        error_fake = criterion(output, label)
        error_fake.backward()
        of_critic.step()
        generator.zero_grad()
        label.fill_(1.0)
        error = criterion(critic(fake).view(-1), label)
        error.backward()
        of_generator.step()
        told += [(error_real + error_fake).item(), output.mean().item(), error.item()]
    return told, state(generator), state(critic)


@case
def vae(m):
    nn, F = m.nn, m.nn.functional

    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc21, self.fc22 = nn.Linear(12, 8), nn.Linear(8, 3), nn.Linear(8, 3)
            self.fc3, self.fc4 = nn.Linear(3, 8), nn.Linear(8, 12)

        def encode(self, x):
            h1 = F.relu(self.fc1(x))
            return self.fc21(h1), self.fc22(h1)

        def reparameterize(self, mu, logvar):
            std = m.exp(0.5 * logvar)
            return mu + numbers(m, *std.shape).type_as(std) * std

        def forward(self, x):
            mu, logvar = self.encode(x.view(-1, 12))
            return m.sigmoid(self.fc4(F.relu(self.fc3(self.reparameterize(mu, logvar))))), mu, logvar

    model = fixed(m, VAE())
    optimizer, losses = m.optim.Adam(model.parameters(), lr=1e-2), []
    for at in range(3):
        x = numbers(m, 4, 1, 3, 4, start=at).abs()
        optimizer.zero_grad()
        recon, mu, logvar = model(x)
        loss = F.binary_cross_entropy(recon, x.view(-1, 12), reduction="sum")
        loss += -0.5 * m.sum(1 + logvar - mu.pow(2) - logvar.exp())
        loss.backward()
        losses.append(loss.item() / len(x))
        optimizer.step()
    return losses, state(model)


@case
def spatial_transformer(m):
    nn, F = m.nn, m.nn.functional

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.localization = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, stride=2), nn.ReLU(True))
            self.fc_loc = nn.Sequential(nn.Linear(2 * 3 * 3, 4), nn.ReLU(True), nn.Linear(4, 3 * 2))
            self.conv, self.drop, self.fc = nn.Conv2d(1, 2, 3), nn.Dropout2d(), nn.Linear(2 * 3 * 3, 3)

        def forward(self, x):
            theta = self.fc_loc(self.localization(x).view(-1, 2 * 3 * 3)).view(-1, 2, 3)
            x = F.grid_sample(x, F.affine_grid(theta, x.size(), align_corners=False), align_corners=False)
            x = self.drop(F.relu(F.max_pool2d(self.conv(x), 2))).view(-1, 2 * 3 * 3)
            return F.log_softmax(self.fc(x), dim=1)

    model = fixed(m, Net()).eval()
    model.fc_loc[2].weight.data.zero_()
    model.fc_loc[2].bias.data.copy_(m.tensor([1, 0, 0, 0, 1, 0], dtype=m.float))
    optimizer, told = m.optim.SGD(model.parameters(), lr=0.05), []
    for _ in range(3):
        optimizer.zero_grad()
        output = model(numbers(m, 2, 1, 8, 8))
        loss = F.nll_loss(output, m.tensor([0, 2]))
        loss.backward()
        optimizer.step()
        told += [loss.item(), output.max(1, keepdim=True)[1].eq(m.tensor([[0], [2]])).sum().item()]
    return told, state(model)


@case
def a_map_that_leaves_an_image_as_it_is(m):
    """Every point lies right on a pixel, where rounding decides which side's gradient is taken.

    Without aligned corners the last bit depends on whether the processor rounds a product before it adds to it.
    """
    F, found = m.nn.functional, []
    for size in (2, 5, 8, 13, 28):
        for aligned in (False, True):
            theta = m.eye(2, 3, dtype=m.float64).unsqueeze(0).requires_grad_()
            grid = F.affine_grid(theta, (1, 1, size, size + 1), align_corners=aligned)
            out = F.grid_sample(numbers(m, 1, 1, size, size + 1), grid, align_corners=aligned)
            (out * numbers(m, *out.shape, start=4.0)).sum().backward()
            found += [grid, out, theta.grad if aligned else None]
    return found


@case
def maml(m):
    functional_call, losses = m.func.functional_call, []
    model = fixed(m, m.nn.Sequential(m.nn.Linear(1, 4), m.nn.Tanh(), m.nn.Linear(4, 1)))
    optimizer, mse = m.optim.Adam(model.parameters(), lr=0.01), m.nn.MSELoss()
    for _ in range(2):
        outer = 0.0
        for task in range(2):
            x = numbers(m, 5, 1, start=task)
            y = (x * (task + 1)).sin()
            fast = dict(model.named_parameters())
            for _ in range(2):
                inner = mse(functional_call(model, fast, (x,)), y)
                grads = m.autograd.grad(inner, list(fast.values()), create_graph=True)
                fast = {name: p - 0.1 * g for (name, p), g in zip(fast.items(), grads, strict=True)}
            outer = outer + mse(functional_call(model, fast, (x,)), y)
        optimizer.zero_grad()
        outer.backward()
        optimizer.step()
        losses.append(outer.item())
    return losses, state(model)


@case
def style_transfer(m):
    nn, F = m.nn, m.nn.functional

    def gram_matrix(input):
        a, b, c, d = input.size()
        features = input.view(a * b, c * d)
        return m.mm(features, features.t()).div(a * b * c * d)

    class ContentLoss(nn.Module):
        def __init__(self, target):
            super().__init__()
            self.target = target.detach()

        def forward(self, input):
            self.loss = F.mse_loss(input, self.target)
            return input

    class StyleLoss(ContentLoss):
        def __init__(self, target):
            super().__init__(gram_matrix(target))

        def forward(self, input):
            self.loss = F.mse_loss(gram_matrix(input), self.target)
            return input

    class Normalization(nn.Module):
        def __init__(self, mean, std):
            super().__init__()
            self.mean, self.std = m.tensor(mean).view(-1, 1, 1), m.tensor(std).view(-1, 1, 1)

        def forward(self, img):
            return (img - self.mean) / self.std

    cnn = fixed(m, nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(3, 3, 3))).eval()
    content, style = numbers(m, 1, 2, 6, 6), numbers(m, 1, 2, 6, 6, start=2.0)
    model, losses, i = nn.Sequential(Normalization([0.4, 0.5], [0.2, 0.3])), [], 0
    for layer in cnn.children():
        if isinstance(layer, nn.Conv2d):
            i += 1
            name = f"conv_{i}"
        else:
            name, layer = f"relu_{i}", nn.ReLU(inplace=False)
        model.add_module(name, layer)
        if name == "conv_1":
            losses.append(StyleLoss(model(style).detach()))
            model.add_module("style_loss_1", losses[-1])
        if name == "conv_2":
            losses.append(ContentLoss(model(content).detach()))
            model.add_module("content_loss_2", losses[-1])
    image = content.clone()
    image.requires_grad_(True)
    model.eval()
    model.requires_grad_(False)
    optimizer, run = m.optim.LBFGS([image]), [0]
    told = []
    while run[0] <= 20:

        def closure():
            with m.no_grad():
                image.clamp_(0, 1)
            optimizer.zero_grad()
            model(image)
            loss = sum(part.loss * weight for part, weight in zip(losses, (10.0, 1.0), strict=True))
            loss.backward()
            run[0] += 1
            told.append(loss.item())
            return loss

        optimizer.step(closure)
    with m.no_grad():
        image.clamp_(0, 1)
    return told[:3], min(told) < told[0], [name for name, _ in model.named_children()]


@case
def averaged_weights(m):
    model = fixed(m, m.nn.Linear(3, 2))
    ema, swa = copy.deepcopy(model), [p.detach().clone() for p in model.parameters()]
    for p in ema.parameters():
        p.requires_grad_(False)
    optimizer = m.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scheduler = m.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    for n in range(4):
        optimizer.zero_grad(set_to_none=True)
        model(numbers(m, 4, 3, start=n)).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
        with m.no_grad():
            for p_ema, p in zip(ema.parameters(), model.parameters(), strict=True):
                p_ema.mul_(0.9).add_(p, alpha=0.1)
            for mean, p in zip(swa, model.parameters(), strict=True):
                mean += (p - mean) / (n + 2)
    restored = copy.deepcopy(model)
    restored.load_state_dict({k: v.clone() for k, v in ema.state_dict().items()})
    learnt = [p.requires_grad for p in ema.parameters()]
    return state(ema), swa, state(restored), optimizer.param_groups[0]["lr"], learnt


@case
def checkpointing(m):
    from importlib import import_module

    checkpoint = import_module(f"{m.__name__}.utils.checkpoint")
    blocks = fixed(m, m.nn.Sequential(*[m.nn.Sequential(m.nn.Linear(4, 4), m.nn.Tanh()) for _ in range(4)]))
    x = numbers(m, 3, 4).requires_grad_()
    y = checkpoint.checkpoint_sequential(blocks, 2, x, use_reentrant=False)
    z = checkpoint.checkpoint(lambda a, b: (a * b).sin(), y, x, use_reentrant=False)
    z.sum().backward()
    return z, x.grad, [p.grad for p in blocks.parameters()]


@case
def initialisation_by_loops(m):
    nn, init = m.nn, m.nn.init
    net = nn.ModuleDict({
        "conv": nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), "lstm": nn.LSTM(3, 4, 2, bidirectional=True),
        "head": nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4, bias=False)]),
    })  # fmt: skip
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            init.eye_(module.weight) if module.weight.dim() == 2 else init.dirac_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.LSTM):
            for name, p in module.named_parameters():
                if "weight_hh" in name:
                    for k in range(4):
                        init.constant_(p.data[k * 4 : (k + 1) * 4], 0.1 * k)
                elif "bias" in name:
                    n = p.size(0)
                    p.data.fill_(0)
                    p.data[n // 4 : n // 2].fill_(1)
                elif p.dim() >= 2:
                    init.constant_(p, 0.5)
    count = sum(p.numel() for p in net.parameters() if p.requires_grad)
    decay = [n for n, p in net.named_parameters() if p.ndim >= 2 and not n.endswith("bias")]
    tables = [name for name, _ in net["lstm"]._parameters.items()]
    return state(net), count, decay, tables, list(net._modules), repr(net)


@case
def hooks_and_features(m):
    nn, seen = m.nn, {}

    def keep(name, module, args, output):
        seen[name] = output.detach()

    net = fixed(m, nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    handles = [layer.register_forward_hook(functools.partial(keep, name)) for name, layer in net.named_children()]
    grads = []
    net[2].weight.register_hook(lambda g: g * 2)
    net[0].register_full_backward_hook(lambda module, gi, go: grads.append(go[0].norm().item()))
    net(numbers(m, 2, 3)).sum().backward()
    for handle in handles:
        handle.remove()
    net(numbers(m, 2, 3, start=9.0))
    cut = nn.Sequential(*list(net.children())[:-1])
    for p in cut.parameters():
        p.requires_grad = False
    net[2] = fixed(m, nn.Linear(4, 5))
    return seen, grads, cut(numbers(m, 1, 3)), net(numbers(m, 1, 3)), [p.requires_grad for p in net.parameters()]


@case
def saliency_and_attack(m):
    F = m.nn.functional
    model = fixed(m, m.nn.Sequential(m.nn.Flatten(), m.nn.Linear(16, 3))).eval()
    data = numbers(m, 2, 1, 4, 4).abs()
    data.requires_grad = True
    loss = F.nll_loss(F.log_softmax(model(data), dim=1), m.tensor([0, 1]))
    model.zero_grad()
    loss.backward()
    attacked = m.clamp(data + 0.1 * data.grad.data.sign(), 0, 1)
    penalty = m.autograd.grad(model(data).sum(), data, create_graph=True)[0]
    penalty = ((penalty.view(2, -1).norm(2, dim=1) - 1) ** 2).mean()
    penalty.backward()
    return attacked, data.grad.abs().max(), penalty, model[1].weight.grad


@pytest.mark.parametrize("snippet", case.values(), ids=list(case))
def test_programs_agree(snippet):
    agree_on(snippet)
