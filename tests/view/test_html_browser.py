r"""Pages as a reader sees and handles them, in headless Chromium."""

import re
import shutil

import pytest
import torch
from plot_case import hetero, link, molecule
from torch_geometric.explain import Explanation
from torch_geometric.utils import to_undirected

from pyg_dnx import to_html
from pyg_dnx.view.html import notebook_html

selenium = pytest.importorskip('selenium')
from selenium.common.exceptions import WebDriverException  # noqa: E402
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, Keys  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None)
DRIVER = shutil.which('chromedriver')
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason='needs Chromium and chromedriver on the PATH')
ATTACK = '<img src=x onerror="document.title=1">'
OPTIONS = [
    '--headless',
    '--no-sandbox',
    '--disable-gpu',
    '--disable-dev-shm-usage',
    '--disable-quic',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
    '--window-size=1280,1000',
]
PLACE = """
const [zoom, left, top] = canvas.dataset.view.split(' ').map(Number), i = nodes.id.indexOf(arguments[0]);
const box = canvas.getBoundingClientRect();
return [nodes.x[i] * zoom + left - box.width / 2, nodes.y[i] * zoom + top - box.height / 2];
"""
PAN = """
const done = arguments[0], context = canvas.getContext('2d'), times = [];
const send = (type, x) => {
  canvas.dispatchEvent(new PointerEvent(type, { pointerId: 1, button: 0, clientX: x, clientY: 300 }));
};
const frame = () => new Promise(requestAnimationFrame);
(async () => {
  send('pointerdown', 300);
  for (let step = 1; step <= 50; step++) {
    await frame();
    const start = performance.now();
    send('pointermove', 300 + 4 * step);
    await frame();
    context.getImageData(0, 0, 1, 1); // so that it is painted, and not only put in a queue
    times.push(performance.now() - start);
  }
  send('pointerup', 500);
  done(times.sort((a, b) => a - b));
})();
"""


class Browser:
    r"""Chromium with a page open, and what tests ask of it."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, path, theme='light', width=1280):
        media = {'features': [{'name': 'prefers-color-scheme', 'value': theme}]}
        self.driver.execute_cdp_cmd('Emulation.setEmulatedMedia', media)
        size = {'width': width, 'height': 1000, 'deviceScaleFactor': 1, 'mobile': width < 500}
        self.driver.execute_cdp_cmd('Emulation.setDeviceMetricsOverride', size)
        self.driver.get_log('browser')
        self.driver.get(path.as_uri())
        self.settle()

    def settle(self):
        r"""Waits until what was asked for is drawn."""
        self.driver.execute_async_script('requestAnimationFrame(() => requestAnimationFrame(arguments[0]))')

    def run(self, script, *arguments):
        known = "const canvas = document.querySelector('canvas'), nodes = data.nodes;"
        result = self.driver.execute_script(known + script, *arguments)
        self.settle()
        return result

    def find(self, selector):
        return self.driver.find_element('css selector', selector)

    def state(self, name):
        return self.find('canvas').get_attribute(f'data-{name}')

    def rows(self, column, table='#nodes'):
        r"""What the rows of a table that can be seen say in a column."""
        script = """
        return [...document.querySelectorAll(arguments[0] + ' tbody tr')].filter((row) => row.offsetParent)
            .map((row) => row.cells[arguments[1]].textContent);
        """
        return self.driver.execute_script(script, table, column)

    def top(self, k):
        script = (
            "const s = document.querySelector('#slider'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))"
        )
        self.run(script, k)

    def to_node(self, node, click=False):
        x, y = self.run(PLACE, node)
        actions = ActionChains(self.driver, duration=0).move_to_element_with_offset(
            self.find('canvas'), round(x), round(y)
        )
        (actions.click() if click else actions).perform()
        self.settle()

    def click(self, selector):
        self.find(selector).click()
        self.settle()


@pytest.fixture(scope='module')
def driver(tmp_path_factory):
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    for option in [*OPTIONS, f'--user-data-dir={tmp_path_factory.mktemp("chromium")}']:
        options.add_argument(option)
    options.set_capability('goog:loggingPrefs', {'browser': 'ALL'})
    try:
        driver = Chrome(options=options, service=Service(DRIVER))
    except WebDriverException as error:
        pytest.skip(f'Chromium does not start here: {error.msg}')
    yield driver
    driver.quit()


def explanation_of(num_nodes):
    r"""A random graph in which node 3 is explained, with scores that fall from node 0 on and change their sign."""
    generator = torch.Generator().manual_seed(0)
    node = torch.arange(1, num_nodes).repeat(2)
    earlier = (torch.rand(len(node), generator=generator).square() * node).long()  # so the first have most neighbours
    edge_index = to_undirected(torch.stack([node, earlier]))
    score = torch.linspace(1.0, 0.1, num_nodes) * torch.where(torch.arange(num_nodes) % 3 == 1, -1.0, 1.0)
    return Explanation(
        x=torch.ones(num_nodes, 4),
        edge_index=edge_index,
        node_score=score[:, None] * torch.tensor([0.5, 1.0, -1.0, 0.5]),  # which add up to the score
        node_mask=torch.ones(num_nodes, 4),
        edge_mask=torch.rand(edge_index.size(1), generator=generator),
        index=torch.tensor([3]),
    )


@pytest.fixture(scope='module')
def path(tmp_path_factory):
    return to_html(explanation_of(100), tmp_path_factory.mktemp('page') / 'page.html')


@pytest.fixture
def browser(driver, path):
    browser = Browser(driver)
    browser.open(path)
    yield browser
    messages = [entry['message'] for entry in driver.get_log('browser')]
    assert [message for message in messages if 'getImageData' not in message] == []  # which only tests call


@pytest.mark.parametrize('theme', ['light', 'dark'])
@pytest.mark.parametrize('width', [390, 800, 1600])
def test_pages_load(browser, path, theme, width):
    browser.open(path, theme, width)
    assert browser.run('return performance.getEntriesByType("resource").length') == 0
    assert browser.run('return document.documentElement.dataset.theme') == theme
    assert browser.run('return document.documentElement.scrollWidth') <= width
    assert (browser.find('h1').text, browser.find('.badge').text) == ('Explanation of node 3', 'No verdict')
    colours = 'return new Set(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data).size'
    assert browser.run(colours) > 20  # something is drawn


def test_the_policy_stops_what_was_not_written(browser, path):
    script = "const s = document.createElement('script'); s.textContent = 'document.title = 1'; document.body.append(s)"
    browser.run(f'{script}; return fetch("data:text/plain,a").catch(() => null)')
    assert browser.driver.title == 'Explanation of node 3'
    refused = [entry['message'] for entry in browser.driver.get_log('browser')]
    assert len([message for message in refused if 'Content Security Policy' in message]) >= 2


def test_the_slider_changes_what_is_shown(browser):
    assert (browser.state('shown'), len(browser.rows(0))) == ('60', 60)
    before = int(browser.state('edges'))
    browser.top(10)
    assert (browser.state('shown'), browser.rows(0)) == ('10', [str(rank) for rank in range(1, 11)])
    assert int(browser.state('edges')) < before
    share = sum(1.0 - 0.9 * i / 99 for i in range(10)) / 55.0
    assert browser.find('#share').text.startswith(f'They hold {share:.0%} of')
    browser.find('#slider').send_keys(Keys.ARROW_RIGHT)
    browser.settle()
    assert (browser.state('shown'), browser.find('#top').get_attribute('value')) == ('11', '11')
    browser.top(2)
    assert browser.rows(1) == ['0', '1', '3']  # the explained node stays
    browser.find('#top').send_keys(Keys.CONTROL, 'a', Keys.NULL, '100', Keys.TAB)
    browser.settle()
    assert (browser.state('shown'), browser.find('#slider').get_attribute('value')) == ('100', '100')


@pytest.mark.parametrize(('node', 'score'), [(3, r'\+0\.973'), (4, r'−0\.964'), (0, r'\+1\.00')])
def test_hover_shows_the_score(browser, node, score):
    assert not browser.find('#tooltip').is_displayed()
    browser.to_node(node)
    text = browser.find('#tooltip').text
    assert re.fullmatch(rf'Node {node}\n.*\nScore {score}, rank {node + 1} of 100', text)
    assert ('explained' in text, re.search(r'\d hops? away', text) is None) == (node == 3, node == 3)
    ActionChains(browser.driver, duration=0).move_to_element(browser.find('h1')).perform()
    browser.settle()
    assert not browser.find('#tooltip').is_displayed()


def test_a_click_keeps_a_node(browser):
    browser.to_node(4, click=True)
    chosen = browser.run('return nodes.id[canvas.dataset.pinned]')
    assert (chosen, browser.find('#nodes tr.selected').text.split()[:2]) == (4, ['5', '4'])
    browser.find('body').send_keys(Keys.ESCAPE)
    browser.settle()
    assert browser.state('pinned') == '-1'
    browser.find('#nodes tbody tr:nth-child(7) button').send_keys(Keys.ENTER)
    browser.settle()
    assert browser.run('return nodes.id[canvas.dataset.pinned]') == 6


def test_search_finds_what_is_not_shown(browser):
    browser.top(5)
    browser.find('#search').send_keys('97')
    browser.settle()
    assert browser.rows(1) == ['97']
    browser.click('#nodes tr:not([hidden]) td button')
    assert browser.state('shown') == '6'
    browser.find('#search').clear()
    browser.run("document.querySelector('#search').dispatchEvent(new Event('input'))")
    assert browser.rows(1) == ['0', '1', '2', '3', '4', '97']


def test_tables_sort_by_any_column(browser):
    def sort(column, table='#nodes'):
        browser.click(f'{table} th:nth-child({column}) button')
        cell = browser.find(f'{table} th:nth-child({column})')
        return cell.get_attribute('aria-sort')

    numbers = [int(node) for node in browser.rows(1)]
    assert numbers == list(range(60))
    assert (sort(2), sort(2)) == ('ascending', 'descending')
    assert [int(node) for node in browser.rows(1)] == numbers[::-1]
    assert sort(4) == 'descending'  # the highest scores are what one looks for
    scores = [float(score.replace('−', '-')) for score in browser.rows(3)]
    assert scores == sorted(scores, reverse=True)
    assert min(scores) < 0 < max(scores)
    assert browser.find('#nodes th:nth-child(2)').get_attribute('aria-sort') == 'none'
    assert browser.rows(1, '#features') == ['1', '2', '0', '3']
    assert sort(2, '#features') == 'ascending'
    assert browser.rows(1, '#features') == ['0', '1', '2', '3']


def test_the_theme_can_be_switched(browser):
    def colours():
        page = browser.run('return getComputedStyle(document.body).backgroundColor')
        return page, browser.run('return [...canvas.getContext("2d").getImageData(0, 0, 400, 400).data].join()')

    light = colours()
    browser.click('#theme')
    dark = colours()
    assert all(one != other for one, other in zip(light, dark, strict=True))
    assert (browser.find('#theme').text, browser.find('#theme').get_attribute('aria-pressed')) == ('Light', 'true')
    browser.click('#theme')
    assert colours() == light


def test_the_view_moves_and_nodes_do_not(browser):
    def view():
        return [float(value) for value in browser.state('view').split()]

    first = view()
    ActionChains(browser.driver, duration=0).drag_and_drop_by_offset(browser.find('canvas'), 60, 40).perform()
    browser.settle()
    assert view() == pytest.approx([first[0], first[1] + 60, first[2] + 40], abs=1)
    browser.click('[aria-label="Zoom in"]')
    assert view()[0] == pytest.approx(1.4 * first[0])
    browser.find('canvas').send_keys('-', Keys.ARROW_LEFT)
    browser.settle()
    assert view()[0] == pytest.approx(1.12 * first[0])
    wheel = "canvas.dispatchEvent(new WheelEvent('wheel', {deltaY: -100, cancelable: true}))"
    browser.run(wheel)
    assert view()[0] > 1.12 * first[0]
    chosen = view()
    browser.top(100)
    assert view() == chosen
    browser.top(60)
    browser.click('[aria-label="Show the whole graph"]')
    assert view() == first


def test_two_fingers_zoom(browser):
    before = float(browser.state('view').split()[0])
    browser.run("""
    const box = canvas.getBoundingClientRect(), send = (type, pointerId, x) => canvas.dispatchEvent(
      new PointerEvent(type, { pointerId, button: 0, clientX: box.left + x, clientY: box.top + 200 }));
    send('pointerdown', 1, 100); send('pointerdown', 2, 200); send('pointermove', 2, 300);
    send('pointerup', 1, 100); send('pointerup', 2, 300);
    """)
    assert float(browser.state('view').split()[0]) == pytest.approx(2.0 * before)
    assert browser.state('pinned') == '-1'


def test_labels_are_text(browser, tmp_path):
    labels = [f'{ATTACK} {i}' for i in range(30)]
    page = to_html(
        explanation_of(30), tmp_path / 'page.html', node_labels=labels, feature_labels=labels[:4], title=ATTACK
    )
    browser.open(page)
    browser.to_node(5)
    assert browser.find('#tooltip b').text == f'{ATTACK} 5'
    assert browser.rows(2)[:2] == labels[:2]
    assert browser.rows(1, '#features')[0] == labels[1]
    assert browser.driver.title == browser.find('h1').text == ATTACK
    assert browser.driver.find_elements('css selector', 'img') == []


@pytest.mark.parametrize('num_nodes', [1, 2])
def test_tiny_graphs(browser, tmp_path, num_nodes):
    explanation = Explanation(x=torch.ones(num_nodes, 1), edge_index=torch.zeros(2, 0).long(), index=torch.tensor([0]))
    explanation.node_score = torch.zeros(num_nodes)
    explanation.node_mask = torch.ones(num_nodes, 1)
    browser.open(to_html(explanation, tmp_path / 'page.html'))
    assert (browser.state('shown'), browser.rows(1)) == (str(num_nodes), [str(node) for node in range(num_nodes)])
    browser.to_node(0)
    assert 'Score 0, rank 1' in browser.find('#tooltip').text


def test_a_thousand_nodes(browser, tmp_path, record_property):
    browser.open(to_html(explanation_of(1000), tmp_path / 'page.html'))
    browser.top(1000)
    assert (browser.state('shown'), len(browser.rows(0))) == ('1000', 1000)
    times = browser.driver.execute_async_script("const canvas = document.querySelector('canvas');" + PAN)
    median, worst = times[len(times) // 2], times[-1]
    record_property('pan_ms', f'median {median:.1f}, worst {worst:.1f}')
    print(f'50 pan frames of 1,000 nodes: median {median:.1f} ms, worst {worst:.1f} ms')
    assert len(times) == 50
    assert float(browser.state('view').split()[1]) > 0


def pixels(browser, colour):
    r"""How many pixels of the graph are about of a colour."""
    script = """
    const colour = arguments[0], found = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    let count = 0;
    const isNear = (at) => colour.every((part, k) => Math.abs(found[at + k] - part) < 12);
    for (let at = 0; at < found.length; at += 4) count += isNear(at);
    return count;
    """
    return browser.run(script, list(colour))


@pytest.mark.parametrize('theme', ['light', 'dark'])
def test_bonds_have_the_colours_of_their_scores(browser, tmp_path, theme):
    explanation = molecule(node_score=torch.zeros(14), edge_score=torch.ones(30), edge_mask=None)
    browser.open(to_html(explanation, tmp_path / 'page.html'), theme)
    orange, blue = {'light': ((213, 94, 0), (0, 114, 178)), 'dark': ((240, 124, 43), (61, 159, 219))}[theme]
    assert pixels(browser, orange) > 500
    assert pixels(browser, blue) == 0
    assert (browser.state('shown'), browser.state('edges')) == ('14', '15')
    assert 'Hops' not in browser.find('#nodes thead').text
    assert 'edge score below 0' in browser.find('#legend').text
    explanation.edge_score = -explanation.edge_score
    browser.open(to_html(explanation, tmp_path / 'page.html'), theme)
    assert pixels(browser, blue) > 500


def test_types_are_in_the_table_and_the_legend(browser, tmp_path):
    browser.open(to_html(hetero(), tmp_path / 'page.html'))
    assert set(browser.rows(2)) == {'paper', 'author', 'venue'}
    for name in ('paper', 'author', 'venue'):
        assert name in browser.find('#legend').text
    assert len(browser.driver.find_elements('css selector', '#legend canvas')) == 3
    browser.to_node(2)
    assert browser.find('#tooltip b').text == 'paper 2'


def test_links_are_named(browser, tmp_path):
    browser.open(to_html(link(), tmp_path / 'page.html'))
    assert browser.find('h1').text == 'Why class 1 for the link 0 – 7?'
    assert 'ends of the link' in browser.find('#legend').text


def test_pages_work_in_a_notebook(browser, tmp_path):
    names = [f'{ATTACK} {i}' for i in range(30)]
    explanation = explanation_of(30)
    explanation.node_names = explanation.class_names = names
    frames = [notebook_html(explanation), notebook_html(molecule())]
    (tmp_path / 'notebook.html').write_text(f'<!DOCTYPE html><title>mine</title><p>cell</p>{"".join(frames)}')
    browser.driver.get((tmp_path / 'notebook.html').as_uri())
    found = []
    for frame in browser.driver.find_elements('css selector', 'iframe'):
        browser.driver.execute_script('arguments[0].scrollIntoView()', frame)
        browser.driver.switch_to.frame(frame)
        browser.settle()
        found.append((browser.find('h1').text, browser.find('canvas').get_attribute('data-shown')))
        assert browser.driver.find_elements('css selector', 'img') == []
        browser.driver.switch_to.default_content()
    assert found == [(f'Explanation of node 3 ({names[3]})', '30'), ('Why stimulant for the graph?', '14')]
    assert browser.driver.title == 'mine'
