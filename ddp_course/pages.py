"""Small pages within a page: they run in the reader's browser, without a kernel or a network.

Each is a script of its own in this folder, NAME.js, which looks for the element of class ddp-NAME
and finds its data there as JSON. In JupyterLab and in the book alike.
"""

import json
from pathlib import Path

FOLDER = Path(__file__).parent


def page(name, body, data):
    """HTML of such a page.

    Parameters
    ----------
    name : str
        NAME.js is in this folder.
    body : str
        HTML: controls and places to write to, found by their ``data-is``.
    data : object
        What the script needs, as JSON can hold it.

    Returns
    -------
    str
    """
    style = (FOLDER / "pages.css").read_text(encoding="utf-8")
    script = (FOLDER / f"{name}.js").read_text(encoding="utf-8")
    # Text in the data that ends a script would end this one.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return (
        f"<style>\n{style}</style>\n"
        f'<div class="ddp-{name}">{body}\n<script type="application/json">{text}</script></div>\n'
        f"<script>\n{script}</script>"
    )
