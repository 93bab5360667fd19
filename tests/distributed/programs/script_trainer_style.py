"""A script as PyTorch's tutorials have them: a Trainer class with snapshots, and gradient accumulation with no_sync."""

import os

import wayfare as torch
import wayfare.nn.functional as F
from wayfare.distributed import destroy_process_group, init_process_group
from wayfare.distributed.optim import ZeroRedundancyOptimizer
from wayfare.nn.parallel import DistributedDataParallel as DDP
from wayfare.utils.data import DataLoader, Dataset
from wayfare.utils.data.distributed import DistributedSampler


class MyTrainDataset(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(0)
        self.size = size
        self.data = [(torch.rand(20, generator=generator), torch.rand(1, generator=generator)) for _ in range(size)]

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.data[index]


class Trainer:
    def __init__(self, model, train_data, optimizer_class, snapshot_path):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.train_data = train_data
        self.snapshot_path = snapshot_path
        self.epochs_run = 0
        if os.path.exists(snapshot_path):
            snapshot = torch.load(snapshot_path)
            model.load_state_dict(snapshot["MODEL_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]
        self.model = DDP(model)
        self.optimizer = ZeroRedundancyOptimizer(self.model.parameters(), optimizer_class=optimizer_class, lr=1e-2)

    def _run_epoch(self, epoch):
        self.train_data.sampler.set_epoch(epoch)
        total = 0.0
        for i, (source, targets) in enumerate(self.train_data):
            if i % 2 == 0:
                with self.model.no_sync():
                    F.mse_loss(self.model(source), targets).backward()
                continue
            loss = F.mse_loss(self.model(source), targets)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            total += loss.item()
        return total

    def _save_snapshot(self, epoch):
        snapshot = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1}
        torch.save(snapshot, self.snapshot_path)

    def train(self, max_epochs):
        losses = []
        for epoch in range(self.epochs_run, max_epochs):
            losses.append(self._run_epoch(epoch))
            if self.global_rank == 0:
                self._save_snapshot(epoch)
        return losses


def main(path):
    init_process_group(backend="gloo")
    torch.manual_seed(0)
    dataset = MyTrainDataset(64)
    model = torch.nn.Linear(20, 1)
    loader = DataLoader(dataset, batch_size=4, pin_memory=False, shuffle=False, sampler=DistributedSampler(dataset))
    losses = Trainer(model, loader, torch.optim.Adam, path).train(4)
    assert losses[-1] < losses[0], losses
    destroy_process_group()


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
