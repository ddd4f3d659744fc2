"""Small pages within a page: they run in the reader's browser, without a kernel or a network.

Each has a script of its own in this folder, NAME.js, which pages.js starts with the data that lies
in the element of class ddp-NAME. In JupyterLab and in the book alike.
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
    # Text in the data that ends a script would end this one.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return (
        f"<style>\n{_read('pages.css')}</style>\n"
        f'<div class="ddp-page ddp-{name}">{body}\n'
        f'<script type="application/json">{text}</script></div>\n'
        f"<script>\n{_read('pages.js')}{_read(f'{name}.js')}</script>"
    )


def _read(name):
    return (FOLDER / name).read_text(encoding="utf-8")
