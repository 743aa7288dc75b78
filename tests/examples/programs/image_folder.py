"""Trains a classifier of photographs that lie in a folder for each class.

python image_folder.py FOLDER [--epochs 2] [--workers 2] [--no-training]
"""

import argparse
import os
import random
import time

import numpy as np
import torch
import torch.nn as nn
from PIL import Image
from torch.utils.data import DataLoader, Dataset


class ImageFolder(Dataset):
    """Images below a folder, whose subfolders are the classes."""

    def __init__(self, root, transform):
        self.classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.samples = [
            (os.path.join(root, name, file), label)
            for label, name in enumerate(self.classes)
            for file in sorted(os.listdir(os.path.join(root, name)))
        ]
        self.transform = transform

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")
        return self.transform(image), label, path


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


class RandomCrop:
    def __init__(self, size):
        self.size = size

    def __call__(self, image):
        left = random.randint(0, image.width - self.size)
        top = int(torch.randint(0, image.height - self.size + 1, ()))
        return image.crop((left, top, left + self.size, top + self.size))


class CenterCrop:
    def __init__(self, size):
        self.size = size

    def __call__(self, image):
        left, top = (image.width - self.size) // 2, (image.height - self.size) // 2
        return image.crop((left, top, left + self.size, top + self.size))


def random_flip(image):
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if np.random.rand() < 0.5 else image


def to_tensor(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)


class Normalize:
    def __init__(self, mean, std):
        self.mean = torch.tensor(mean).view(3, 1, 1)
        self.std = torch.tensor(std).view(3, 1, 1)

    def __call__(self, tensor):
        return (tensor - self.mean) / self.std


def make_model(classes):
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=4),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--crop", type=int, default=56)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-training", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    normalize = Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    train_set = ImageFolder(
        os.path.join(args.folder, "train"),
        Compose([RandomCrop(args.crop), random_flip, to_tensor, normalize]),
    )
    val_set = ImageFolder(
        os.path.join(args.folder, "val"), Compose([CenterCrop(args.crop), to_tensor, normalize])
    )
    train_loader = DataLoader(
        train_set, batch_size=args.batch_size, shuffle=True, num_workers=args.workers, drop_last=True
    )
    val_loader = DataLoader(val_set, batch_size=args.batch_size, shuffle=False, num_workers=args.workers)
    model = make_model(len(train_set.classes))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(args.epochs):
        began = time.perf_counter()
        model.train()
        for step, (images, labels, paths) in enumerate(train_loader):
            if args.no_training:
                continue
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} step {step}: {loss.item().hex()} {os.path.relpath(paths[0], args.folder)}")
        model.eval()
        correct = total = 0
        with torch.no_grad():
            for images, labels, _ in val_loader:
                if not args.no_training:
                    correct += (model(images).argmax(1) == labels).sum().item()
                total += len(labels)
        print(f"epoch {epoch}: {correct} of {total} right")
        print(f"seconds {time.perf_counter() - began:.4f}")


if __name__ == "__main__":
    main()
