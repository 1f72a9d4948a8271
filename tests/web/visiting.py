"""Visits addresses of the page in Chromium, light and dark, with axe: run by a Python that has Playwright.

    python visiting.py CHROMIUM AXE.js BASE PATH [PATH ...]

Prints one JSON object: what axe calls serious or critical, errors of scripts, and what the keyboard did.
"""

import json
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
GRAVE = ("serious", "critical")


def main(chromium: str, axe: str, base: str, paths: list[str]) -> None:
    grave: list[Any] = []
    errors: list[str] = []
    told: dict[str, Any] = {"grave": grave, "errors": errors}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        for scheme in ("light", "dark"):
            page = browser.new_context(color_scheme=scheme).new_page()
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
            for path in paths:
                page.goto(base + path)
                page.locator("#live[data-state=on]").wait_for()
                page.evaluate(Path(axe).read_text())
                grave += [
                    [scheme, path, found["id"], [node["html"][:200] for node in found["nodes"]]]
                    for found in page.evaluate("axe.run()")["violations"]
                    if found["impact"] in GRAVE
                ]
        page.goto(base + "/")
        page.locator("#live[data-state=on]").wait_for()
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url("**/runs/*")
        told["opened"] = page.url.removeprefix(base)
        page.keyboard.press("g")
        page.keyboard.press("m")
        page.wait_for_url("**/cost")
        page.keyboard.press("?")
        told["help"] = page.evaluate("document.getElementById('help').open")
        browser.close()
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
