"""The one kind of error that is meant for the person who typed the command."""


class CourseError(ValueError):
    """Bad input. Its message is one line that says what to type instead."""
