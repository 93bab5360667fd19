"""A script as PyTorch's examples have them, with the imports changed and nothing else: a DistributedSampler, a
DistributedDataParallel, a loss that is averaged with all_reduce, a checkpoint by rank 0."""

import argparse
import os

import wayfare as torch
import wayfare.distributed as dist
import wayfare.nn as nn
import wayfare.nn.functional as F
import wayfare.optim as optim
from wayfare.nn.parallel import DistributedDataParallel as DDP
from wayfare.utils.data import DataLoader, TensorDataset
from wayfare.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.bn = nn.BatchNorm2d(8)
        self.dropout = nn.Dropout(0.1)
        self.fc1 = nn.Linear(8 * 3 * 3, 10)

    def forward(self, x):
        x = F.relu(self.bn(self.conv1(x)))
        x = F.max_pool2d(x, 2)
        x = torch.flatten(x, 1)
        return F.log_softmax(self.fc1(self.dropout(x)), dim=1)


def train(model, device, train_loader, optimizer, epoch):
    model.train()
    total = torch.zeros(2, device=device)
    for data, target in train_loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        total[0] += loss.item() * len(data)
        total[1] += len(data)
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    if dist.get_rank() == 0:
        print(f"Train Epoch: {epoch} \tLoss: {total[0] / total[1]:.6f}")
    return (total[0] / total[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--save", default="")
    args = parser.parse_args()

    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend)
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    assert rank == dist.get_rank() and world_size == dist.get_world_size() and local_rank <= rank
    torch.manual_seed(1)
    device = torch.device("cpu")

    generator = torch.Generator().manual_seed(0)
    images = torch.randn(96, 1, 8, 8, generator=generator)
    labels = (images.mean(dim=(1, 2, 3)) > 0).long()
    dataset = TensorDataset(images, labels)
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)

    model = Net().to(device)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = DDP(model)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    losses = []
    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        losses.append(train(model, device, loader, optimizer, epoch))
        scheduler.step()
    if args.save and rank == 0:
        torch.save(model.module.state_dict(), args.save)
    dist.barrier()
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
