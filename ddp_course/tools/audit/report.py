"""What the audit answers: a verdict for each question, and notes."""

from dataclasses import dataclass, field

QUESTIONS = {
    "split": "data split",
    "in_sync": "parameters in sync",
    "averaged": "gradients averaged",
    "paired": "collectives paired",
}


@dataclass
class Verdict:
    """An answer, and why.

    Attributes
    ----------
    answer : bool or None
        None: can't tell.
    evidence : list of str
    """

    answer: bool | None = None
    evidence: list = field(default_factory=list)

    def __str__(self):
        word = {True: "yes", False: "NO", None: "can't tell"}[self.answer]
        return "\n".join([word, *(f"    {line}" for line in self.evidence)])


@dataclass
class Report:
    """The four verdicts; filled when the block of `watch` ends.

    Attributes
    ----------
    split, in_sync, averaged, paired : Verdict
        Is the data split, are parameters (and what else determines a step) in sync, are the
        gradients averaged, do the ranks' collectives pair up?
    notes : list of str
        What is no fault by itself, or can't be told from one: seeds, clipped gradients, the
        course of the learning rate, buffers that differ, parameters without a gradient.
    """

    split: Verdict = field(default_factory=Verdict)
    in_sync: Verdict = field(default_factory=Verdict)
    averaged: Verdict = field(default_factory=Verdict)
    paired: Verdict = field(default_factory=Verdict)
    notes: list = field(default_factory=list)

    def verdicts(self):
        """The four verdicts, in the order of QUESTIONS."""
        return [getattr(self, name) for name in QUESTIONS]

    def __str__(self):
        lines = [f"{words + ':':20}{getattr(self, name)}" for name, words in QUESTIONS.items()]
        return "\n".join([*lines, *(f"note: {line}" for line in self.notes)])
