"""The console in a real Chromium, over a real node: it updates by itself, by keys, at 400 px, dark
and light. GOSSIPQ_PICTURES=docs/pictures keeps screenshots.
"""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import RunningNode
from console.test_console import console_of
from dialects.harness import Gateway, gateway_of
from gossipq_cli.demo.shop import Shop
from gossipq_client import connect
from waiting import until

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

PROGRAM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(PROGRAM is None or DRIVER is None, reason="apt-get install chromium chromium-driver"),
]
PICTURES = os.environ.get("GOSSIPQ_PICTURES")
SETTLED_S = 60.0 if PICTURES else 2.0  #: before a picture is taken: curves need something to show
WIDE, NARROW = (1_280, 860), (400, 860)
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--force-device-scale-factor=1"),
)
PAGES = (
    *("", "nodes", "topics", "groups", "clients", "messages?topic=orders", "dead", "schedules", "alarms"),
    *("config", "group?topic=orders&group=billing", "topic?name=orders"),
)


@pytest.fixture
def shop(node: RunningNode) -> Iterator[Gateway]:
    with Shop([node.endpoint]), gateway_of(node.endpoint, console_of(node.endpoint)) as gateway:
        yield gateway


class Window:
    """A tab of Chromium."""

    def __init__(self, gateway: Gateway) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = PROGRAM
        for flag in FLAGS:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.tab = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        self._root = f"http://{gateway.http}/console/"

    def looks(self, size: tuple[int, int], scheme: str) -> None:
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.tab.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        width, height = size
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.tab.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)

    def open(self, path: str) -> None:
        self.tab.get(self._root + path)

    def text(self, where: str) -> str:
        """Asked in one go: parts of a page are replaced as they change."""
        found = self.tab.execute_script("return document.querySelector(arguments[0])?.innerText || ''", where)
        return str(found)

    def type(self, *keys: str) -> None:
        """Types keys into the element with the focus."""
        webdriver.ActionChains(self.tab).send_keys(*keys).perform()

    def said(self) -> list[str]:
        """Errors in the browser's console."""
        return [row["message"] for row in self.tab.get_log("browser") if row["level"] != "INFO"]

    def picture(self, name: str) -> None:
        if PICTURES:
            self.tab.save_screenshot(str(Path(PICTURES) / f"console-{name}.png"))


@pytest.fixture
def window(shop: Gateway) -> Iterator[Window]:
    found = Window(shop)
    yield found
    found.tab.quit()


def test_in_a_real_browser(window: Window, node: RunningNode) -> None:
    window.looks(WIDE, "dark")
    window.open("")
    seen = [window.text(".facts")]
    until(lambda: window.text(".facts") not in seen)  # by itself
    time.sleep(SETTLED_S)
    window.picture("overview")

    window.type("4")  # by keys
    until(lambda: window.text("h1") == "Groups")
    window.type("/")
    window.type("ledger", Keys.ENTER)
    until(lambda: window.tab.current_url.endswith("like=ledger"))
    assert "billing" not in window.text("main")
    window.type("j")
    window.type(Keys.ENTER)
    until(lambda: window.text("h1") == "ledger")
    until(lambda: "/s in" in window.text(".verdict"))
    time.sleep(SETTLED_S / 4)
    window.picture("group")

    window.tab.find_element(By.CSS_SELECTOR, "button[value=pause]").click()
    until(lambda: "would get nothing more" in window.text("main"))
    window.tab.find_element(By.CSS_SELECTOR, "main form button").click()
    until(lambda: "ledger on payments is paused" in window.text("main"))
    window.tab.find_element(By.LINK_TEXT, "back").click()
    until(lambda: "paused" in window.text(".verdict"))
    with connect(node.endpoint) as mq:
        assert all(part.paused for part in mq.topic("payments").groups())
    assert window.said() == []


def test_every_page_at_each_width_and_in_each_scheme(window: Window) -> None:
    window.open("topics")
    until(lambda: "payments" in window.text("main"))
    for size, scheme in ((WIDE, "light"), (NARROW, "dark"), (NARROW, "light")):
        window.looks(size, scheme)
        for path in PAGES:
            window.open(path)
            wide = window.tab.execute_script("return document.documentElement.scrollWidth")
            assert wide <= size[0], f"{path or 'overview'} is {wide} wide at {size[0]}"
            assert window.said() == [], path
            name = path.partition("?")[0]
            if size == WIDE and name == "messages":
                window.picture(name)


def test_a_gateway_that_is_gone_is_said_to_be(window: Window, shop: Gateway) -> None:
    window.looks(WIDE, "dark")
    window.open("nodes")
    until(lambda: window.text(".facts"))
    shop.stop()
    until(lambda: "does not answer" in window.text("#lost"))
