"""Visits addresses of the page in Chromium, light and dark, with axe: run by a Python that has Playwright.

    python visiting.py keyboard CHROMIUM AXE.js BASE PATH [PATH ...]
    python visiting.py sign-in CHROMIUM AXE.js BASE TOKEN PATH [PATH ...]

Prints one JSON object: what axe calls serious or critical, errors and dialogs of scripts, and what was done by keyboard
or by signing in.
"""

import json
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, sync_playwright

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
GRAVE = ("serious", "critical")


def main(what: str, chromium: str, axe: str, base: str, rest: list[str]) -> None:
    told: dict[str, Any] = {"grave": [], "errors": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        visits = [Visit(browser, scheme, Path(axe).read_text(), base, told) for scheme in ("light", "dark")]
        if what == "sign-in":
            for visit in visits:
                sign_in(visit, told, rest[0], rest[1:])
        else:
            for visit in visits:
                for path in rest:
                    visit.see(path)
            use_keyboard(visits[-1].page, base, told)
        browser.close()
    print(json.dumps(told))


class Visit:
    """A visit to the page in light or dark colours; keeps what is wrong with it."""

    def __init__(self, browser: Browser, scheme: str, axe: str, base: str, told: dict[str, Any]) -> None:
        self.base = base
        self.context = browser.new_context(color_scheme=scheme)
        self.page = self.context.new_page()
        self._scheme, self._axe, self._told = scheme, axe, told
        self.page.on("pageerror", lambda error: told["errors"].append(str(error)))
        self.page.on("console", self._console)
        self.page.on("dialog", self._dialog)

    def see(self, path: str) -> None:
        """Look at an address once it is live."""
        self.page.goto(self.base + path)
        self.page.locator("#live[data-state=on]").wait_for()
        self.judge(path)

    def judge(self, path: str) -> None:
        """Have axe look at what is there."""
        self.page.evaluate(self._axe)
        self._told["grave"] += [
            [self._scheme, path, found["id"], [node["html"][:200] for node in found["nodes"]]]
            for found in self.page.evaluate("axe.run()")["violations"]
            if found["impact"] in GRAVE
        ]

    def _console(self, message: ConsoleMessage) -> None:
        # Whoever has not signed in is answered so, which Chromium calls an error.
        if message.type == "error" and "401 (Unauthorized)" not in message.text:
            self._told["errors"].append(message.text)

    def _dialog(self, dialog: Dialog) -> None:
        self._told["errors"].append(f"a script said {dialog.message}")
        dialog.dismiss()


def use_keyboard(page: Page, base: str, told: dict[str, Any]) -> None:
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


def sign_in(visit: Visit, told: dict[str, Any], token: str, paths: list[str]) -> None:
    """Come without a token, with a wrong one and with the right one, look around, and sign out."""
    page = visit.page
    page.goto(visit.base + paths[0])
    visit.judge("the question who reads")
    told["before"] = page.locator("#main").inner_text()
    page.get_by_label("Token").fill("wrong-" + token)
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()
    visit.judge("a wrong token")
    told["refused"] = page.get_by_role("alert").inner_text()
    page.get_by_label("Token").fill(token)
    page.get_by_label("Namespace").fill("vision")
    page.get_by_role("button", name="Sign in").click()
    page.locator("#live[data-state=on]").wait_for()
    told["after"] = page.url.removeprefix(visit.base)
    for path in paths:
        visit.see(path)
    # A script cannot read the token, and no other page is told it.
    told["seen_by_scripts"] = page.evaluate("document.cookie")
    told["cookies"] = [[each["httpOnly"], each["sameSite"]] for each in visit.context.cookies()]
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("Token").wait_for()
    page.goto(visit.base + paths[0])
    told["afterwards"] = page.locator("#main").inner_text()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
