#!/usr/bin/env python3
"""Makes the pictures of the documentation: the page (chat and live view) and the plot of a load run.

  tools/page_pictures.py [--bin build/cpu/bin]

Serves models/abacus, talks to it in headless Chromium, puts `baleen bench serve` on it and writes
docs/pictures/page-chat.png, page-live.png and load.svg, and the rows of the load to bench/results/cpu.
"""
import argparse
import datetime
import pathlib
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP / "tests" / "e2e"))
sys.dont_write_bytecode = True
from page_browser import PageBrowser  # noqa: E402

SIZE = (1240, 820)


def chat(browser, url):
    browser.open(url, SIZE)
    browser.set("temperature", "0")
    browser.ask("What is 37 + 58?")
    browser.answered()
    browser.set("effort", "high")
    browser.ask("What is 82 - 45?")
    browser.answered()
    browser.click(".thinking:not([hidden]) summary")
    browser.script("document.activeElement.blur(); document.getElementById('messages').scrollTop = 0")
    browser.driver.save_screenshot(str(TOP / "docs" / "pictures" / "page-chat.png"))


def load(program, url, *flags):
    return [program, "bench", "serve", "--url", url, "--temperature", "0", "--answer-tokens", "48", *flags]


def live(browser, program, url):
    busy = subprocess.Popen(load(program, url, "--concurrency", "5", "--requests", "400", "--turns", "3", "--groups", "4",
                                 "--shared-tokens", "500", "--prompt-tokens", "60-400"),
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    browser.open(f"{url}/#live", SIZE)
    browser.wait(lambda: len(browser.all(".run")) >= 8, "the cache tree")
    browser.wait(lambda: browser.script("return Chart.getChart(document.querySelector('canvas')).data.datasets[0].data.length") > 20,
                 "some seconds of load")
    browser.script("document.querySelector('.run.locked, .run').dispatchEvent(new MouseEvent('click'))")
    browser.script("document.activeElement.blur()")
    height = browser.script("return document.getElementById('live').scrollHeight + 60")
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": SIZE[0], "height": min(1300, height), "deviceScaleFactor": 1, "mobile": False})
    browser.wait(lambda: browser.script("return document.querySelector('canvas').getContext('2d') !== null"))
    browser.driver.save_screenshot(str(TOP / "docs" / "pictures" / "page-live.png"))
    busy.terminate()
    busy.wait()


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--bin", type=pathlib.Path, default=TOP / "build" / "cpu" / "bin")
    program = options.parse_args().bin / "baleen"
    (TOP / "docs" / "pictures").mkdir(exist_ok=True)
    server = subprocess.Popen([program, "serve", TOP / "models" / "abacus", "--port", "0", "--log-level", "warn"],
                              stdout=subprocess.PIPE, text=True)
    browser = PageBrowser()
    try:
        url = server.stdout.readline().split()[1]
        chat(browser, url)
        live(browser, program, url)
        browser.close()
        rows = TOP / "bench" / "results" / "cpu" / f"{datetime.date.today().isoformat()}-load.csv"
        subprocess.run(load(program, url, "--concurrency", "1,4,16", "--requests", "48", "--turns", "3", "--groups", "4",
                            "--shared-tokens", "300", "--prompt-tokens", "40-120", "--label", "abacus, 2 cores",
                            "--csv", rows, "--plot", TOP / "docs" / "pictures" / "load.svg"), check=True)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
