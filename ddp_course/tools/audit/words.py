"""What the judges share: which names differ, and how to say a few of many."""


def differing(dicts):
    """The names in which the ranks' dicts differ.

    Parameters
    ----------
    dicts : list of dict

    Returns
    -------
    list of str
    """
    names = dict.fromkeys(name for d in dicts for name in d)
    return [name for name in names if len({d.get(name) for d in dicts}) > 1]


def some(names):
    """The first three of them, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
