"""A headless Chromium on the page, and what every test of the page wants to know of it."""
import json
import os
import pathlib
import time
import urllib.parse

import axe_core_python.selenium
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

DESK = (1400, 900)
PHONE = (390, 844)
WAIT_S = 30


class PageBrowser:
    def __init__(self):
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        # No sandbox of its own: tests may run as root in a container.
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--hide-scrollbars", "--no-first-run", "--disable-background-networking"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
        self.url = None

    def close(self):
        self.driver.quit()

    def open(self, url, size=DESK, dark=False, keep=False):
        """Loads the page anew, with an empty storage unless `keep`."""
        width, height = size
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
        self.url = url
        self.driver.get("about:blank")  # leaves the page, which keeps its conversations then
        if not keep:
            origin = "{0.scheme}://{0.netloc}".format(urllib.parse.urlsplit(url))
            self.driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
        self.logs()
        self.driver.get(url)
        self.wait(lambda: self.text("#state") != "")

    # Looking.

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        """What is in the element, seen or not."""
        return self.driver.execute_script(
            "return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def script(self, code, *arguments):
        return self.driver.execute_script(code, *arguments)

    def wait(self, ready, what="the page"):
        end = time.monotonic() + WAIT_S
        while not (found := ready()):
            assert time.monotonic() < end, f"waited {WAIT_S} s for {what}"
            time.sleep(0.05)
        return found

    def last_answer(self):
        return self.script("return [...document.querySelectorAll('.message.answer')].pop()")

    def answer_text(self):
        return self.script("return [...document.querySelectorAll('.message.answer .body > .text')].pop()?.textContent")

    def answered(self):
        """Waits until no answer is under way; gives the last one's text."""
        self.wait(lambda: self.all(".message.answer") and not self.all(".answering"), "an answer")
        return self.answer_text()

    def figures(self):
        rows = self.script("""
            const last = [...document.querySelectorAll('.message.answer')].pop();
            return [...last.querySelectorAll('.figures div')].map((row) => [row.children[0].textContent,
                                                                            row.children[1].textContent]);""")
        return dict(rows)

    # Doing.

    def ask(self, text):
        field = self.find("#prompt")
        field.send_keys(text)
        field.send_keys(Keys.ENTER)

    def click(self, selector):
        self.find(selector).click()

    def set(self, name, value):
        """Fills a field of the settings."""
        self.script("""
            const field = document.getElementById(`set-${arguments[0]}`);
            field.value = arguments[1];
            field.dispatchEvent(new Event('change'));""", name, value)

    # Judging.

    def logs(self):
        """Console lines and requested URLs since the last call."""
        console = self.driver.get_log("browser")
        urls = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                urls.append(message["params"]["request"]["url"])
        return console, urls

    def check_quiet(self, allowed=()):
        """No line on the console but those of refused requests that a test wanted; nothing from elsewhere."""
        console, urls = self.logs()
        lines = [line["message"] for line in console if not any(word in line["message"] for word in allowed)]
        assert lines == []
        origin = urllib.parse.urlsplit(self.url).netloc
        elsewhere = [url for url in urls
                     if not url.startswith(("about:", "data:")) and urllib.parse.urlsplit(url).netloc != origin]
        assert elsewhere == []
        return urls

    def check_accessible(self):
        found = axe_core_python.selenium.Axe().run(self.driver)["violations"]
        assert not found, [(v["id"], v["help"], [node["html"][:120] for node in v["nodes"]][:3]) for v in found]

    def check_fits(self):
        """Nothing sticks out to the side."""
        wide = self.script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{wide} pixels too wide"

    def shot(self, name):
        """A picture for people, where BALEEN_SHOTS names a folder."""
        folder = os.environ.get("BALEEN_SHOTS")
        if folder:
            pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
            self.driver.save_screenshot(str(pathlib.Path(folder) / f"{name}.png"))
