"""Train a small CNN on handwritten digits, on one device."""

import argparse

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from ddp_course import data, results
from ddp_course.models import SmallCNN


def settings(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32, help="images per step")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


@torch.no_grad()
def evaluate(model, test, device):
    model.eval()
    images, labels = next(iter(DataLoader(test, batch_size=len(test))))
    return (model(images.to(device)).argmax(1) == labels.to(device)).float().mean().item()


def train(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(args.seed)
    images = data.load("digits")
    loader = DataLoader(images.train, args.batch, shuffle=True)
    model = SmallCNN(images.shape, images.classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(args.epochs):
        losses = torch.zeros(len(loader), device=device)
        for step, (pixels, labels) in enumerate(loader):
            loss = F.cross_entropy(model(pixels.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[step] = loss.detach()
        print(f"epoch {epoch}: mean loss {losses.mean():.4f}")

    accuracy = evaluate(model, images.test, device)
    print(f"accuracy on held-out digits: {accuracy:.4f}")
    results.save("03_single", {"accuracy": accuracy}, device)
    torch.save(model.state_dict(), results.path("03_single").with_suffix(".pt"))
    return accuracy


if __name__ == "__main__":
    train(settings())
