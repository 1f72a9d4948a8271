"""First contentful paint of addresses in Chromium, each in a new browser context: run by a Python that has Playwright.

    python painting.py CHROMIUM CALLS BASE PATH [PATH ...]

Prints a JSON object of milliseconds from the start of the navigation (Paint Timing, W3C), for each path.
"""

import json
import sys

from playwright.sync_api import Browser, sync_playwright

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
PAINTED = """() => new Promise(done => {
  const told = () => performance.getEntriesByName('first-contentful-paint')[0];
  const look = () => { if (told()) done(told().startTime); };
  new PerformanceObserver(look).observe({type: 'paint'});
  look();
})"""


def main(chromium: str, calls: str, base: str, *paths: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        print(json.dumps({path: [paint_ms(browser, base + path) for _ in range(int(calls))] for path in paths}))
        browser.close()


def paint_ms(browser: Browser, url: str) -> float:
    context = browser.new_context()
    page = context.new_page()
    page.goto(url)
    took: float = page.evaluate(PAINTED)
    context.close()
    return took


if __name__ == "__main__":
    main(*sys.argv[1:])
