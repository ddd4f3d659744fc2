"""Lesson 03: wrong answers, each with what the check must say, and other right ones."""

from wrong_answers import right, wrong


@wrong("plan_buckets", "in exactly one bucket")
def last_left_out(sizes, cap):
    return [[i] for i in range(len(sizes) - 1)]


@wrong("plan_buckets", "No bucket may be empty")
def empty_bucket(sizes, cap):
    return [list(range(len(sizes))), []]


@wrong("plan_buckets", "before or after it goes over the cap")
def one_each(sizes, cap):
    return [[i] for i in range(len(sizes))]
