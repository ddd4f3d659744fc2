"""Answers that an exercise's check must refuse, or accept: NN.py holds those of lesson NN."""

from importlib import import_module


def wrong(exercise, hint):
    """Mark a function as a wrong answer to `exercise`; the check's message must hold `hint`."""
    return _mark(exercise, hint)


def right(exercise):
    """Mark a function as another right answer to `exercise` than the lesson's solution."""
    return _mark(exercise, None)


def _mark(exercise, hint):
    def mark(function):
        function.exercise, function.hint = exercise, hint
        return function

    return mark


def answers(number):
    """The marked functions of a lesson, by its number ("05"), in the order of the file."""
    module = import_module(f"wrong_answers.{number}")
    return [answer for answer in vars(module).values() if hasattr(answer, "exercise")]
