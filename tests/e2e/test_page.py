"""The page in a real browser: chat, thinking, tools, stop, reload, errors, live view, layouts."""
import json
import subprocess
import threading
import time

import httpx
import pytest
from selenium.webdriver.common.keys import Keys

from conftest import start_scripted
from page_browser import DESK, PHONE, PageBrowser

pytestmark = pytest.mark.usefixtures("program")  # once, beside the program, not in every build

CALL = ("Looking.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n"
        "<｜DSML｜parameter name=\"city\" string=\"true\">Rome</｜DSML｜parameter>\n"
        "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"weather\">\n"
        "<｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n"
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>")
TOOLS = json.dumps([{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}])
THOUGHTS = " ".join(["First I add the tens."] * 20)  # long enough to be seen open
LONG = " ".join(f"word{i}" for i in range(60))


@pytest.fixture(scope="module")
def browser():
    browser = PageBrowser()
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = start_scripted(tmp_path_factory.mktemp("page"), step_delay_us=4000, scripts=[
        {"prompt_contains": "and now", "text": "fine"},
        {"prompt_contains": "sunny", "text": "Rome is sunny, Oslo is not."},
        {"prompt_contains": "weather in", "text": CALL},
        {"prompt_contains": "ponder", "text": f"{THOUGHTS}</think>It is **4**."},
        {"prompt_contains": "go on", "text": "and on ", "end": "repeat"},
        {"prompt_contains": "break", "text": "abcdef", "nan_after": 3},
        {"prompt_contains": "markup", "text": "# Head\n<b>not bold</b> <script>x</script>\n\n- one\n- two\n\n```py\na < b\n```"},
        {"prompt_contains": "long", "text": LONG},
        {"prompt_contains": "", "text": "fine"},
    ])
    yield server
    assert server.stop() == 0, "".join(server.log)


def test_first_load_is_quiet_and_accessible(browser, server):
    browser.open(server.url)
    browser.wait(lambda: browser.text("#state") == "ready")
    assert browser.text("#model-name") == "scripted"
    assert browser.script("return document.activeElement.id") == "prompt"
    browser.check_fits()
    browser.check_accessible()
    browser.shot("first-load")
    urls = browser.check_quiet()
    assert any(url.endswith("/chart.min.js") for url in urls)


def test_an_answer_is_seen_while_it_is_made(browser, server):
    browser.open(server.url)
    browser.ask("something long")
    seen = set()
    browser.wait(lambda: seen.add(browser.answer_text() or "") or (
        not browser.all(".answering") and browser.answer_text() == LONG), "the whole answer")
    parts = [text for text in seen if text and text != LONG]
    assert parts and all(LONG.startswith(text) for text in parts)
    figures = browser.figures()
    assert figures["reused"].startswith("0 of ") and "tokens/s" in figures["speed"]
    assert figures["first token"].endswith(("ms", " s"))
    browser.ask("and now")
    assert browser.answered() == "fine"
    browser.check_accessible()
    browser.check_quiet()


def test_the_models_markup_is_text(browser, server):
    browser.open(server.url)
    browser.ask("markup")
    browser.answered()
    assert "<b>not bold</b> <script>x</script>" in browser.answer_text()
    assert not browser.all(".message.answer .text b, .message.answer .text script")
    assert [item.text for item in browser.all(".message.answer li")] == ["one", "two"]
    assert browser.find(".message.answer pre code").text == "a < b"
    browser.check_accessible()
    browser.check_quiet()


def test_thoughts_fold_away_when_the_answer_begins(browser, server):
    browser.open(server.url)
    browser.set("effort", "high")
    browser.ask("ponder")
    browser.wait(lambda: browser.all(".thinking[open]"), "open thoughts")
    browser.answered()
    assert not browser.all(".thinking[open]")
    assert browser.text(".thinking .text") == THOUGHTS
    assert browser.answer_text() == "It is 4."
    assert "Thought for" in browser.text(".thinking summary")
    browser.click(".thinking summary")
    browser.wait(lambda: browser.all(".thinking[open]"), "the fold")
    browser.shot("thinking")
    browser.check_accessible()
    browser.check_quiet()


def test_calls_are_answered_by_hand(browser, server):
    browser.open(server.url)
    browser.set("tools", TOOLS)
    browser.ask("weather in both?")
    browser.wait(lambda: len(browser.all(".call textarea")) == 2, "the fields of two calls")
    assert [json.loads(call.text)["city"] for call in browser.all(".call pre")] == ["Rome", "Oslo"]
    browser.check_accessible()
    browser.shot("tool-call")
    fields = browser.all(".call textarea")
    fields[0].send_keys("sunny")
    fields[1].send_keys("rain")
    browser.click(".results button")
    assert browser.answered() == "Rome is sunny, Oslo is not."
    assert [result.text for result in browser.all(".message.tool pre")] == ["sunny", "rain"]
    assert not browser.all(".call textarea")
    browser.check_quiet()


def running(server):
    return httpx.get(f"{server.url}/get_load").json()[0]["num_reqs"]


def test_stop_ends_the_request_and_keeps_the_text(browser, server):
    browser.open(server.url)
    for stop in (lambda: browser.click("#stop-button"), lambda: browser.find("body").send_keys(Keys.ESCAPE)):
        browser.ask("go on")
        browser.wait(lambda: "and on and on" in (browser.answer_text() or ""), "some text")
        assert running(server) == 1
        stop()
        text = browser.answered()
        assert text.startswith("and on and on")
        assert browser.figures()["end"] == "stopped by you"
        browser.wait(lambda: running(server) == 0, "the end of the request")
    browser.check_quiet()


def test_retry_and_edit_ask_anew(browser, server):
    browser.open(server.url)
    browser.ask("first")
    browser.answered()
    browser.ask("second")
    browser.answered()
    retry = browser.all(".message.answer .actions button")[-1]
    assert retry.text == "Retry"
    retry.click()
    browser.answered()
    assert len(browser.all(".message.user")) == 2 and len(browser.all(".message.answer")) == 2
    browser.all(".message.user .actions button")[0].click()
    field = browser.find(".edit textarea")
    field.clear()
    field.send_keys("markup")
    browser.click(".edit button.main")
    browser.answered()
    assert len(browser.all(".message.user")) == 1
    assert "Head" in browser.answer_text()
    browser.check_quiet()


def test_conversations_outlive_a_reload(browser, server):
    browser.open(server.url)
    browser.ask("first")
    browser.answered()
    browser.click("#new-button")
    browser.ask("go on")
    browser.wait(lambda: "and on" in (browser.answer_text() or ""), "some text")
    browser.open(server.url, keep=True)
    assert [item.text for item in browser.all("#conversations .open")] == ["go on", "first"]
    assert "and on" in browser.answer_text()
    assert "left before the answer was complete" in browser.text(".problem")
    browser.wait(lambda: running(server) == 0, "the end of the request")
    browser.all("#conversations .open")[1].click()
    assert browser.answer_text() == "fine"
    browser.all("#conversations .quiet")[0].click()
    assert [item.text for item in browser.all("#conversations .open")] == ["first"]
    browser.check_quiet()


def test_errors_are_the_servers_words(browser, server):
    browser.open(server.url)
    body = {"model": "scripted", "messages": [{"role": "user", "content": "x"}], "temperature": -1}
    words = httpx.post(f"{server.url}/v1/chat/completions", json=body).json()["error"]["message"]
    browser.set("temperature", "-1")
    browser.ask("x")
    browser.answered()
    assert words in browser.text(".problem")
    browser.shot("error")
    browser.set("temperature", "")
    browser.ask("break")
    browser.answered()
    assert "logits are not finite" in browser.script(
        "return [...document.querySelectorAll('.problem')].pop().textContent")
    browser.check_accessible()
    browser.check_quiet(allowed=["status of 400"])


def test_a_key_is_asked_for_and_kept(browser, tmp_path):
    server = start_scripted(tmp_path, api_key="secret")
    try:
        browser.open(server.url)
        browser.wait(lambda: "API key" in browser.text("#state"))
        browser.set("key", "secret")
        browser.wait(lambda: browser.text("#state") == "ready")
        browser.ask("hello")
        assert browser.answered() == "fine"
        browser.click("#tab-live")
        browser.wait(lambda: browser.text(".tiles dd") not in ("", "–"), "live numbers")
        browser.check_quiet(allowed=["status of 401"])
    finally:
        assert server.stop() == 0


class Load:
    """Requests one after the other from some threads, while the page looks on."""

    def __init__(self, url):
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(url, i)) for i in range(3)]

    def ask(self, url, number):
        turn = 0
        while not self.ended.is_set():
            turn += 1
            prompt = "Add these numbers one by one and say the sum: " + ", ".join(str(n) for n in range(60))
            httpx.post(f"{url}/v1/chat/completions", timeout=60, json={
                "model": "abacus", "max_tokens": 12, "ignore_eos": True,
                "messages": [{"role": "user", "content": f"{prompt} {number} {turn % 3}"}]}).raise_for_status()

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join()


def test_the_live_view_shows_the_work(browser, abacus):
    with Load(abacus.url):
        browser.open(f"{abacus.url}/#live")
        tile = "return document.querySelectorAll('.tiles > div')[arguments[0]].children[1].textContent"
        browser.wait(lambda: browser.script(tile, 0) not in ("–", "0", "0.0"), "answer tokens")
        browser.wait(lambda: browser.script(tile, 5) not in ("–", "0 %"), "reused prompts")
        browser.wait(lambda: len(browser.all(".run")) >= 2, "the cache tree")
        assert "ms" in browser.script(tile, 4)
        assert len(browser.all(".bar-row")) >= 2
        assert "went on" in browser.text(".card table")
        drawn = browser.script("""
            const canvas = document.querySelector('canvas');
            const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            return data.some((value) => value !== 0);""")
        assert drawn
        # The tree by keyboard: to a run, then along the branches.
        browser.script("document.querySelector('.run[tabindex=\"0\"]').focus()")
        browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
        browser.wait(lambda: "Pages" in browser.text(".details"), "details of a run")
        before = browser.script("return document.activeElement.dataset.page")
        browser.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
        after = browser.script("return document.activeElement.dataset.page")
        assert before is not None and after is not None
        browser.check_fits()
        browser.check_accessible()
        time.sleep(3)
        browser.shot("live")
    browser.check_quiet()


def test_a_training_run_shows_its_curves(browser, program, tmp_path):
    run = subprocess.Popen([program, "rl", "--live", "0", "--out", tmp_path, "--sft-steps", "20", "--num-rollout", "400",
                            "--rollout-batch-size", "8", "--n-samples-per-prompt", "4", "--filter", "none", "--eval-prompts", "4"],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        browser.open(next(line for line in run.stdout if line.startswith("live view: ")).split()[-1])
        browser.wait(lambda: browser.text("#state") == "live view")
        assert browser.find("#live").is_displayed() and not browser.find("#tab-chat").is_displayed()
        points = """return Chart.getChart([...document.querySelectorAll('canvas')].find((canvas) =>
            canvas.getAttribute('aria-label').startsWith('rollout/raw_reward')))?.data.datasets[0].data"""
        browser.wait(lambda: len(browser.script(points) or []) >= 3, "three rollouts")
        assert [point["x"] for point in browser.script(points)][:3] == [0, 1, 2]
        assert all(0 <= point["y"] <= 1 for point in browser.script(points))
        browser.check_fits()
        browser.check_accessible()
        browser.shot("training")
        browser.check_quiet()
    finally:
        run.kill()
        run.wait()


def test_nothing_is_read_while_nobody_looks(browser, abacus):
    browser.open(abacus.url)
    browser.click("#tab-live")
    browser.wait(lambda: browser.text(".tiles dd") not in ("", "–"), "live numbers")
    browser.click("#tab-chat")
    browser.logs()
    time.sleep(5)
    assert browser.check_quiet() == [], "no request while the chat is shown"


@pytest.mark.parametrize("name, size, dark", [("dark", DESK, True), ("phone", PHONE, False), ("phone-dark", PHONE, True)])
def test_layouts(browser, server, name, size, dark):
    browser.open(server.url, size, dark)
    browser.ask("markup long line " + "x" * 120)
    browser.answered()
    browser.check_fits()
    browser.check_accessible()
    browser.shot(name)
    ground = browser.script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in ground[4:-1].split(",")) < 200) == dark
    if size == PHONE:
        for button, panel in (("#list-button", "#list"), ("#settings-button", "#settings")):
            assert not browser.find(panel).is_displayed()
            browser.click(button)
            browser.wait(lambda panel=panel: browser.find(panel).is_displayed(), panel)
            assert browser.find(button).get_attribute("aria-expanded") == "true"
            browser.check_fits()
            browser.find("body").send_keys(Keys.ESCAPE)
            browser.wait(lambda panel=panel: not browser.find(panel).is_displayed(), panel)
        browser.shot(f"{name}-chat")
    browser.click("#tab-live")
    browser.wait(lambda: browser.text(".tiles dd") not in ("", "–"), "live numbers")
    browser.check_fits()
    browser.check_accessible()
    browser.shot(f"{name}-live")
    browser.check_quiet()


def test_colours_can_be_chosen(browser, server):
    browser.open(server.url, dark=False)
    for theme in ("light", "dark"):
        browser.click("#theme-button")
        assert browser.script("return document.documentElement.dataset.theme") == theme
    browser.open(server.url, dark=False, keep=True)
    assert browser.script("return document.documentElement.dataset.theme") == "dark"
    browser.click("#theme-button")
    assert browser.script("return document.documentElement.dataset.theme ?? 'system'") == "system"
    browser.check_quiet()


def test_keyboard_reaches_everything(browser, server):
    browser.open(server.url)
    browser.script("document.activeElement.blur()")
    reached = []
    for _ in range(40):
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(browser.script("return document.activeElement.id || document.activeElement.className"))
    for wanted in ("skip", "tab-chat", "theme-button", "settings-button", "new-button", "prompt", "set-model",
                   "set-temperature", "set-tools", "set-key"):
        assert wanted in reached, reached
    browser.find("#tab-chat").send_keys(Keys.ARROW_RIGHT)
    assert browser.find("#live").is_displayed()
    browser.find("body").send_keys(Keys.ALT, "n")
    assert browser.find("#chat").is_displayed()
    browser.check_quiet()
