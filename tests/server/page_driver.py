"""Sends the form of the demo page in a browser, and reads what the page shows.

Set PAGE_SCREENSHOTS=FOLDER to save screenshots.
"""

import os


def send(page, **texts: str) -> None:
    """Types texts into fields, sends the form and waits for the response."""
    for name, text in texts.items():
        page.fill(f"#{name}", text)
    page.click("#send")
    page.wait_for_selector("#send:not([aria-disabled])")


def photograph(page, name: str) -> None:
    """Saves screenshots of a phone and of a desktop, light and dark; nothing may be too wide."""
    folder = os.environ.get("PAGE_SCREENSHOTS")
    for width in (375, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for scheme in ("light", "dark") if folder else ():
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=f"{folder}/page_{name}_{width}_{scheme}.png", full_page=True)


def rows_of(page) -> list[str]:
    """Returns the visible rows of bars, as texts."""
    rows = page.locator(".bars li:visible").all_inner_texts()
    return [" ".join(text.split()) for text in rows]
