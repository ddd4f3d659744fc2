"""Lesson 15: wrong answers, each with what the check must say, and other right ones."""

import torch

from wrong_answers import right, wrong


@wrong("bug", "Who has the loaded weights")
def one_name(letter):
    return "set_epoch_forgotten"


@wrong("bug", "when it is clipped")
def summed_loss_from_d(letter):
    three = {
        "A": "set_epoch_forgotten",
        "B": "loaded_on_rank_0_after_the_wrap",
        "C": "forward_through_module",
    }
    return three.get(letter, "summed_loss")


@wrong("bug", "an epoch is over")
def letter_itself(letter):
    return letter


@wrong("chunk_to_send", "is in a sum twice")
def own_chunk_always(step, rank, n):
    return rank if step < n - 1 else (rank - 1) % n


@wrong("chunk_to_send", "lack a rank")
def wrong_direction(step, rank, n):
    return (rank + step) % n


@wrong("chunk_to_send", "chunks")
def no_modulo(step, rank, n):
    return rank - step


@wrong("sampler", "epoch 0's order")
def epoch_ignored(size, rank, world_size, seed, epoch):
    g = torch.Generator().manual_seed(seed)
    order = torch.randperm(size, generator=g).tolist()
    total = -(-size // world_size) * world_size
    return (order * total)[:total][rank::world_size]


@wrong("sampler", "Each rank draws ceil")
def not_padded(size, rank, world_size, seed, epoch):
    g = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(size, generator=g).tolist()[rank::world_size]


@wrong("sampler", "padded from its start")
def own_rank_only(size, rank, world_size, seed, epoch):
    return [rank] * -(-size // world_size)


@wrong("average_in_backward", "each has its own")
def no_hook(model, total, n):
    pass


@wrong("average_in_backward", "That is the sum")
def summed(model, total, n):
    def average(p):
        p.grad.copy_(total(p.grad))

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(average)


@wrong("average_in_backward", "each has its own")
def not_written_back(model, total, n):
    def average(p):
        total(p.grad) / n

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(average)


@wrong("average_in_backward", "each has its own")
def first_step_only(model, total, n):
    def average(p):
        p.grad.copy_(total(p.grad) / n)
        handles.pop().remove()

    handles = [p.register_post_accumulate_grad_hook(average) for p in model.parameters()]


@wrong("chunk_to_send", "what was received in a step is sent on in the next.")
def off_by_one_second(step, rank, n):
    return (rank - step) % n if step < n - 1 else (rank - step + 1) % n


@wrong("chunk_to_send", "what was received in a step is sent on in the next.")
def step_only(step, rank, n):
    return step % n


@wrong("chunk_to_send", "0 to 1 exist")
def float_chunk(step, rank, n):
    return float((rank - step) % n)


@right("chunk_to_send")
def shifted(step, rank, n):
    return (rank + 1 - step) % n


@wrong("sampler", "seed + epoch; padded from its start; every world_size-th.")
def in_blocks(size, rank, world_size, seed, epoch):
    g = torch.Generator().manual_seed(seed + epoch)
    o = torch.randperm(size, generator=g).tolist()
    m = -(-size // world_size)
    return (o * (m * world_size))[: m * world_size][rank * m : (rank + 1) * m]


@wrong("sampler", "Each rank draws ceil(2 / 5) = 1 indices, as a list.")
def pads_once(size, rank, world_size, seed, epoch):
    g = torch.Generator().manual_seed(seed + epoch)
    o = torch.randperm(size, generator=g).tolist()
    return (o + o[: -size % world_size])[rank::world_size]


@wrong("sampler", "seed + epoch; padded from its start; every world_size-th.")
def rank_seed(size, rank, world_size, seed, epoch):
    g = torch.Generator().manual_seed(seed + epoch + rank)
    m = -(-size // world_size)
    o = torch.randperm(size, generator=g).tolist()
    return (o * (m * world_size))[: m * world_size][rank::world_size]


@right("sampler")
def by_modulo(size, rank, world_size, seed, epoch):
    g = torch.Generator().manual_seed(seed + epoch)
    o = torch.randperm(size, generator=g)
    return [int(o[i % size]) for i in range(rank, -(-size // world_size) * world_size, world_size)]


@wrong("average_in_backward", "That is the sum.")
def before_accumulation(model, total, n):
    for p in model.parameters():
        p.register_hook(lambda g: total(g))


@wrong("average_in_backward", "Is the result written back to .grad?")
def weight_only(model, total, n):

    def avg(p):
        p.grad.copy_(total(p.grad) / n)

    for m in model:
        if hasattr(m, "weight"):
            m.weight.register_post_accumulate_grad_hook(avg)


@wrong("average_in_backward", "sum over ranks, divided by n, once.")
def divided_twice(model, total, n):

    def avg(p):
        p.grad.copy_(total(p.grad / n) / n)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(avg)


@right("average_in_backward")
def tensor_hook(model, total, n):
    for p in model.parameters():
        p.register_hook(lambda g: total(g) / n)


@right("average_in_backward")
def new_grad(model, total, n):

    def avg(p):
        p.grad = total(p.grad / n)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(avg)
