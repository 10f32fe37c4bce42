//! The page by keyboard, and as a screen reader is told of it.

use crate::{
    browser::Browser,
    common::{SOON, wait_until},
};
use serde_json::json;

/// Key presses within which whatever a view has is reached.
const MOST_PRESSES: usize = 60;

/// What a screen reader finds in a view: its landmarks once each, one heading of the first rank,
/// a name for each picture and for whatever can be pressed, and no part that scrolls but cannot be
/// reached by keyboard.
pub fn check(browser: &Browser, view: &str) {
    let missing = browser.script(
        "const named = (one) => one.textContent.trim() || one.getAttribute('aria-label') \
            || one.getAttribute('aria-labelledby') || one.labels?.length || one.title; \
         const told = (one) => one.outerHTML.slice(0, 120); \
         const all = (what) => [...document.querySelectorAll(what)]; \
         const scrolls = (one) => one.scrollWidth > one.clientWidth + 1 \
            && /auto|scroll/.test(getComputedStyle(one).overflowX); \
         return ['body > header', 'nav[aria-label]', 'main', 'h1'] \
            .filter((what) => all(what).length !== 1) \
            .concat(all('main canvas, main svg[role], main img') \
                .filter((one) => !one.closest('[aria-hidden], [role=img][aria-label]') && !named(one)).map(told)) \
            .concat(all('a, button, input, select, summary').filter((one) => !named(one)).map(told)) \
            .concat(all('main *').filter((one) => scrolls(one) && one.tabIndex < 0 \
                && !one.querySelector('a, button')).map(told))",
    );
    assert_eq!(missing, json!([]), "{view}");
}

/// From the list of jobs to one of them, without a mouse.
pub fn open_by_keyboard(browser: &Browser, job: &str) {
    browser.turn_to("#/jobs");
    wait_until(SOON, "the job is listed", || browser.text().contains(job));
    let focused = || browser.script("return document.activeElement.textContent.trim()");
    let reached = (0..MOST_PRESSES).any(|_| {
        browser.press_key("Tab", 9);
        focused() == json!(job)
    });
    assert!(reached, "{job} is not reached by the key Tab");
    browser.press_key("Enter", 13);
    wait_until(SOON, "the job is shown", || {
        browser.text().contains("Where and when")
    });
}
