"""ResNet-20 on CIFAR-10, as in He et al., "Deep Residual Learning for Image Recognition" (2015), section 4.2.

    python cifar10_resnet.py --data DIR --epochs 10
    shoal train cifar10_resnet.py --workers 2 -- --data DIR --epochs 10

DIR holds train.parquet and test.parquet, with a column `image` (bytes of a 32 x 32 JPEG) and a column `label`
(0 to 9). Needs pyarrow and simplejpeg: pip install 'shoal[images]'.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import shoal

SIDE, PADDING = 32, 4
SHIFTS = 2 * PADDING + 1  # places where a crop can begin, in each direction

# mean and standard deviation of each colour over the training images, in units of 0..255
MEAN = np.array([125.3, 123.0, 113.9], dtype=np.float32).reshape(3, 1, 1)
DEVIATION = np.array([63.0, 62.1, 66.7], dtype=np.float32).reshape(3, 1, 1)
SCALE, OFFSET = 1 / DEVIATION, -MEAN / DEVIATION


class Cifar10(Dataset[tuple[Tensor, int]]):
    """Images decoded once, kept as bytes; cropped, flipped and normalised when they are read."""

    def __init__(self, file: Path, augment: bool, limit: int | None = None) -> None:
        self.images, self.labels = read_images(file, limit)
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        if self.augment:
            image = crop_and_flip(image)
        return torch.from_numpy(image * SCALE + OFFSET), self.labels[index]


def crop_and_flip(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Pad by 4 black pixels, crop at random to the old size, and mirror every second image."""
    # one draw decides all three: from torch's generator, which Shoal seeds for each sample
    draw = int(torch.randint(SHIFTS * SHIFTS * 2, ()))
    place, mirrored = divmod(draw, 2)
    top, left = divmod(place, SHIFTS)
    padded = np.zeros((3, SIDE + 2 * PADDING, SIDE + 2 * PADDING), dtype=np.uint8)
    padded[:, PADDING : PADDING + SIDE, PADDING : PADDING + SIDE] = image
    cropped = padded[:, top : top + SIDE, left : left + SIDE]
    return cropped[:, :, ::-1] if mirrored else cropped


def read_images(file: Path, limit: int | None) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """Decode a Parquet file of JPEG images: an array [samples, 3, 32, 32], and their labels."""
    import simplejpeg
    from pyarrow import parquet

    with parquet.ParquetFile(file) as opened:  # `read_table` would import pandas where that is installed
        table = opened.read(columns=["image", "label"])[:limit]
    images = np.empty((len(table), 3, SIDE, SIDE), dtype=np.uint8)
    for number, jpeg in enumerate(table["image"]):
        images[number] = simplejpeg.decode_jpeg(jpeg.as_py()).transpose(2, 0, 1)
    return images, table["label"].to_pylist()


class Block(nn.Module):
    """Two convolutions and a way around them, which has no parameters (option A of the paper)."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        stride = 1 if channels_in == channels else 2
        self.stride, self.new_channels = stride, channels - channels_in
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.stride != 1:  # every second pixel; the new channels are zero
            half = self.new_channels // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, self.new_channels - half))
        return F.relu(x + y)


class ResNet(nn.Module):
    """`depth` is 6n + 2: three stages of n blocks, with `width`, 2 `width` and 4 `width` channels."""

    def __init__(self, depth: int = 20, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"depth={depth}: must be 6n + 2, such as 8, 20, 32, 44, 56")
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks: list[Block] = []
        channels = width
        for stage_channels in (width, 2 * width, 4 * width):
            for _ in range((depth - 2) // 6):
                blocks.append(Block(channels, stage_channels))
                channels = stage_channels
        self.blocks = nn.Sequential(*blocks)
        self.classify = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.conv(images))))
        logits: Tensor = self.classify(x.mean(dim=(2, 3)))
        return logits


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a ResNet on CIFAR-10.")
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="DIR",
        help="directory with train.parquet and test.parquet: columns `image` (JPEG bytes), `label` (0 to 9)",
    )
    parser.add_argument("--epochs", type=int, default=164, help="the paper's 64,000 steps (default: %(default)s)")
    parser.add_argument("--global-batch", type=int, default=128, help="images to a step (default: %(default)s)")
    parser.add_argument("--depth", type=int, default=20, help="6n + 2 layers (default: %(default)s)")
    parser.add_argument("--limit", type=int, metavar="N", help="use the first N images only, for a quick look")
    arguments = parser.parse_args()
    for name in ("train.parquet", "test.parquet"):
        if not (arguments.data / name).is_file():
            parser.error(
                f"--data {arguments.data}: there is no {name}. It must be a Parquet file with a column "
                "`image` (the bytes of a 32 x 32 JPEG) and a column `label` (0 to 9)"
            )
    return arguments


def main() -> None:
    arguments = parse_arguments()
    half, three_quarters = arguments.epochs / 2, arguments.epochs * 3 / 4
    trainer = shoal.Trainer(
        model=lambda: ResNet(arguments.depth),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-4),
        schedule=shoal.schedules.Steps(at=[f"{half:g} epochs", f"{three_quarters:g} epochs"]),
        train=Cifar10(arguments.data / "train.parquet", augment=True, limit=arguments.limit),
        test=Cifar10(arguments.data / "test.parquet", augment=False, limit=arguments.limit),
        global_batch=arguments.global_batch,
        epochs=arguments.epochs,
    )
    trainer.fit()


if __name__ == "__main__":
    main()
