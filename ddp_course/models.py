"""The models that the lessons train. Small on purpose: the subject is DDP."""

import torch.nn as nn


class ToyNet(nn.Module):
    """Two linear layers, 10 → 10 → 5: input (batch, 10), output (batch, 5), 165 parameters."""

    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.net1(x).relu())


class SmallCNN(nn.Module):
    """Two convolutions and two linear layers.

    Parameters
    ----------
    image_shape : tuple of int
        (channels, height, width): (1, 8, 8) for digits, (1, 28, 28) for MNIST,
        (3, 32, 32) for CIFAR-10. Height and width are divisible by 4.
    classes : int

    Input (batch, *image_shape), output (batch, classes): logits.
    """

    def __init__(self, image_shape=(1, 8, 8), classes=10):
        super().__init__()
        channels, height, width = image_shape
        if height % 4 or width % 4:
            raise ValueError(f"height and width must be divisible by 4, got {height} × {width}")
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(32 * (height // 4) * (width // 4), 128)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, x):
        x = self.pool(self.conv1(x).relu())
        x = self.pool(self.conv2(x).relu())
        return self.fc2(self.fc1(x.flatten(1)).relu())


def resnet18_small(channels=3, classes=10):
    """Build torchvision's ResNet-18 with a stem for images of about 32 × 32.

    The stem for ImageNet (7 × 7, stride 2, then a pool) would leave a 1 × 1 map
    of a small image before the last block. Here: 3 × 3, stride 1, no pool
    (He et al. 2015, section 4.2, do the same for CIFAR-10).

    Parameters
    ----------
    channels, classes : int

    Returns
    -------
    torchvision.models.ResNet
        Input (batch, channels, height, width), output (batch, classes): logits.
    """
    from torchvision.models import resnet18

    model = resnet18(num_classes=classes)
    model.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model
