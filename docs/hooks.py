"""Hooks of MkDocs: a page loads nothing from a network.

Material's plugin `offline` loads a script by its address, so that the search works in pages that are opened
from a disk. The site has that script itself (search-worker.js).
"""

from typing import Any

ELSEWHERE, HERE = "https://unpkg.com/iframe-worker/shim", "search-worker.js"


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    return output.replace(ELSEWHERE, "../" * page.url.count("/") + HERE)


def on_post_template(output_content: str, *, template_name: str, config: Any) -> str:
    return output_content.replace(ELSEWHERE, HERE)
