"""A headless Chromium without a network, and what the tests ask of it."""

from __future__ import annotations

import base64
import json
import shutil
from contextlib import contextmanager

from tests.npm import AXE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
DRIVER = shutil.which("chromedriver")


class Browser:
    def __init__(self, driver):
        self.driver = driver

    def open(self, path, *, width=1440, height=900, dark=False, unfold=True):
        """Load a file at any width, even below a window's least, and wait until the page is drawn.

        unfold: also open all sections.
        """
        self.size(width, height)
        scheme = "dark" if dark else "light"
        self.cdp(
            "Emulation.setEmulatedMedia",
            features=[
                {"name": "prefers-color-scheme", "value": scheme},
                {"name": "prefers-reduced-motion", "value": "reduce"},
            ],
        )
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        self.driver.get(path.as_uri())
        self.wait_drawn(1)
        if unfold:
            self.js("document.querySelectorAll('details.fold').forEach(d => { d.open = true; })")

    def size(self, width, height):
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def drawn(self):
        return int(self.js("return document.documentElement.dataset.drawn || 0"))

    def wait_drawn(self, times):
        """Wait until all charts were drawn at least `times` times."""
        self.until(f"return (document.documentElement.dataset.drawn || 0) >= {times}")

    def until(self, script):
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, 30, 0.05).until(lambda _: self.js(script))

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def cdp(self, command, **arguments):
        return self.driver.execute_cdp_cmd(command, arguments)

    def errors(self):
        return [line["message"] for line in self.driver.get_log("browser")]

    def requests(self):
        """Return the addresses requested since the page was opened, except the page itself."""
        requests = []
        for line in self.driver.get_log("performance"):
            message = json.loads(line["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                requests.append(message["params"]["request"]["url"])
        page = self.driver.current_url.partition("#")[0]
        return [url for url in requests if url.partition("#")[0] != page and url != "data:,"]

    def check(self, charts, *, dark):
        """Check what holds for every page: it drew all its charts, made no request, logged no
        error, does not scroll sideways, and has the colours of the theme."""
        assert self.errors() == []
        assert self.requests() == []
        drawn = self.js(
            "return Object.fromEntries([...document.querySelectorAll('[data-chart]')].map(f =>"
            " [f.dataset.chart, f.querySelectorAll('svg path[d], svg rect').length]))"
        )
        assert drawn.keys() == charts and min(drawn.values()) > 3, drawn
        wide, client = self.js(
            "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert wide <= client, "the page scrolls sideways"
        colour = self.js("return getComputedStyle(document.body).backgroundColor")
        assert (colour == "rgb(18, 22, 27)") is dark

    def obstacles(self):
        """Return the violations that axe-core rates serious or critical, with all details unfolded.
        Each line names a rule and the first elements that break it."""
        self.js("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        self.js((AXE.unpacked() / "axe.min.js").read_text())
        found = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1]; axe.run(document).then(done)"
        )
        assert len(found["passes"]) > 20, "axe looked at hardly anything"
        return [
            f"{rule['id']} ({rule['impact']}): {[node['html'][:200] for node in rule['nodes'][:3]]}"
            for rule in found["violations"]
            if rule["impact"] in ("serious", "critical")
        ]

    def rows(self, table):
        """Return the texts of a table's cells, by row."""
        return self.js(
            "return [...document.querySelectorAll(`[data-table=${arguments[0]}] tbody tr`)]"
            ".map(r => [...r.cells].map(c => c.textContent))",
            table,
        )

    def choose(self, select, value):
        """Choose a value as a reader does, and wait until the page has redrawn."""
        before = self.drawn()
        self.js(
            "const s = document.getElementById(arguments[0]); s.value = arguments[1];"
            "s.dispatchEvent(new Event('change'))",
            select,
            value,
        )
        self.wait_drawn(before + 1)

    def texts(self, chart):
        """Return all texts in a chart."""
        return self.js(
            "return [...document.querySelectorAll(`[data-chart=${arguments[0]}] svg text`)]"
            ".map(t => t.textContent)",
            chart,
        )

    def screenshot(self, path, *, full=True):
        shot = self.cdp("Page.captureScreenshot", captureBeyondViewport=full, **self._clip(full))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _clip(self, full):
        if not full:
            return {}
        size = self.cdp("Page.getLayoutMetrics")["cssContentSize"]
        return {
            "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        }


@contextmanager
def chromium():
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    assert CHROMIUM and DRIVER, "chromium and chromium-driver are missing: apt-get install them"
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--force-color-profile=srgb",
        # No name resolves. Requests to addresses go to a proxy that does not exist.
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--proxy-server=127.0.0.1:9",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
