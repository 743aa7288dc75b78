"""Trains a language model on documents that are packed into blocks of equal length.

python token_packing.py FOLDER [--epochs 2] [--workers 2] [--no-training]
"""

import argparse
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

VOCABULARY = 512
IGNORED = -100


class PackedDocuments(Dataset):
    """Blocks of whole documents, as many as fit; a document that is longer than a block is cut."""

    def __init__(self, folder, block_size):
        self.path = os.path.join(folder, "tokens.bin")
        self.offsets = np.load(os.path.join(folder, "offsets.npy"))
        self.block_size = block_size
        self.blocks = []
        block, room = [], block_size
        for document, length in enumerate(np.diff(self.offsets)):
            length = min(int(length), block_size)
            if length > room:
                self.blocks.append(block)
                block, room = [], block_size
            block.append((document, length))
            room -= length
        self.blocks.append(block)
        self.tokens = None

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, index):
        if self.tokens is None:  # opened in the worker
            self.tokens = np.memmap(self.path, dtype=np.uint16, mode="r")
        pieces, positions, segments = [], [], []
        for segment, (document, length) in enumerate(self.blocks[index]):
            start = self.offsets[document]
            pieces.append(self.tokens[start : start + length].astype(np.int64))
            positions.append(np.arange(length))
            segments.append(np.full(length, segment))
        return {
            "input_ids": np.concatenate(pieces),
            "position_ids": np.concatenate(positions),
            "segments": np.concatenate(segments),
        }


class Collator:
    """Pads to the longest block, and says which token may attend to which."""

    def __call__(self, blocks):
        longest = max(len(block["input_ids"]) for block in blocks)
        shape = (len(blocks), longest)
        input_ids = torch.zeros(shape, dtype=torch.long)
        position_ids = torch.zeros(shape, dtype=torch.long)
        segments = torch.full(shape, -1)
        labels = torch.full(shape, IGNORED)
        for row, block in enumerate(blocks):
            length = len(block["input_ids"])
            input_ids[row, :length] = torch.from_numpy(block["input_ids"])
            position_ids[row, :length] = torch.from_numpy(block["position_ids"])
            segments[row, :length] = torch.from_numpy(block["segments"])
            labels[row, : length - 1] = input_ids[row, 1:length]
        same = segments[:, :, None] == segments[:, None, :]
        causal = torch.ones(longest, longest, dtype=torch.bool).tril()
        labels[:, :-1][segments[:, :-1] != segments[:, 1:]] = IGNORED
        return {
            "input_ids": input_ids,
            "position_ids": position_ids,
            "attention_mask": same & causal,
            "labels": labels,
        }


class LanguageModel(nn.Module):
    def __init__(self, block_size, width=32):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(block_size, width)
        self.attention = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, VOCABULARY)

    def forward(self, input_ids, position_ids, attention_mask, labels):
        hidden = self.tokens(input_ids) + self.positions(position_ids)
        query, key, value = self.attention(hidden).chunk(3, dim=-1)
        hidden = hidden + F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask)
        logits = self.output(hidden)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--block-size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-training", action="store_true")
    args = parser.parse_args()

    generator = torch.Generator().manual_seed(7)
    torch.manual_seed(0)
    loader = DataLoader(
        PackedDocuments(args.folder, args.block_size),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        collate_fn=Collator(),
        pin_memory=torch.cuda.is_available(),
        persistent_workers=args.workers > 0,
        generator=generator,
    )
    model = LanguageModel(args.block_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(args.epochs):
        began = time.perf_counter()
        for step, batch in enumerate(loader):
            if args.no_training:
                continue
            loss = model(**batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            tokens = int((batch["labels"] != IGNORED).sum())
            first = batch["input_ids"][0, :4].tolist()
            print(f"epoch {epoch} step {step}: {loss.item().hex()} {tokens} {first}")
        print(f"seconds {time.perf_counter() - began:.4f}")


if __name__ == "__main__":
    main()
