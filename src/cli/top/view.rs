//! What a person looks at, and how keys change that: which screen, which row, which filter. Pure.

use super::{
    picture::{TopPicture, TopWanted},
    rows::{TopTable, table},
};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Where one is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Screen {
    Cluster,
    Jobs,
    Gpus,
    Job(String),
    Log { job: String, task: u32 },
    Explanation { job: String, task: Option<u32> },
}

/// One of the screens that were gone through to where one is.
#[derive(Clone, Debug)]
pub struct TopPlace {
    pub screen: Screen,
    /// The key of the row that is chosen; the first if it is none.
    pub chosen: Option<String>,
    /// The column that rows are sorted by; None for as they come.
    pub sort: Option<usize>,
    /// Lines above the end of a text that the window ends at.
    pub above_end: usize,
}

/// What keys have led to.
#[derive(Clone, Debug)]
pub struct TopView {
    /// Never empty; the last is shown.
    pub places: Vec<TopPlace>,
    pub filter: String,
    pub typing: bool,
    pub help: bool,
    pub colour: bool,
}

/// What a key means beside a change of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Draw,
    /// Something else is needed of the node.
    Ask,
    Quit,
}

const PAGE: isize = 10;

impl TopPlace {
    fn new(screen: Screen) -> Self {
        Self {
            screen,
            chosen: None,
            sort: None,
            above_end: 0,
        }
    }
}

impl TopView {
    pub fn new(colour: bool) -> Self {
        Self {
            places: vec![TopPlace::new(Screen::Cluster)],
            filter: String::new(),
            typing: false,
            help: false,
            colour,
        }
    }

    pub fn place(&self) -> &TopPlace {
        self.places.last().expect("one is always somewhere")
    }

    fn place_mut(&mut self) -> &mut TopPlace {
        self.places.last_mut().expect("one is always somewhere")
    }

    pub fn wanted(&self) -> TopWanted {
        match self.place().screen.clone() {
            Screen::Cluster | Screen::Gpus => TopWanted::Loads,
            Screen::Jobs => TopWanted::Nothing,
            Screen::Job(job) => TopWanted::Job(job),
            Screen::Log { job, task } => TopWanted::Log { job, task },
            Screen::Explanation { job, task } => TopWanted::Explanation { job, task },
        }
    }

    pub fn key(&mut self, key: KeyEvent, picture: &TopPicture) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }
        if self.typing {
            self.type_filter(key.code);
            return Action::Draw;
        }
        if std::mem::take(&mut self.help) {
            return Action::Draw;
        }
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('?') => self.help = true,
            KeyCode::Char('/') => (self.typing, self.filter) = (true, String::new()),
            KeyCode::Char('1') => return self.begin(Screen::Cluster),
            KeyCode::Char('2') => return self.begin(Screen::Jobs),
            KeyCode::Char('3') => return self.begin(Screen::Gpus),
            KeyCode::Tab => return self.begin(self.next_tab()),
            KeyCode::Char('s') => self.sort_by_next(picture),
            KeyCode::Enter => return self.enter(picture),
            KeyCode::Char('l') => return self.log(picture),
            KeyCode::Char('e') => return self.explain(picture),
            KeyCode::Esc | KeyCode::Backspace => return self.out(),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1, picture),
            KeyCode::Down | KeyCode::Char('j') => self.step(1, picture),
            KeyCode::PageUp => self.step(-PAGE, picture),
            KeyCode::PageDown => self.step(PAGE, picture),
            KeyCode::Home | KeyCode::Char('g') => self.step(isize::MIN / 2, picture),
            KeyCode::End | KeyCode::Char('G') => self.step(isize::MAX / 2, picture),
            _ => {}
        }
        Action::Draw
    }

    /// The wheel of a mouse, or keys that go up and down.
    pub fn step(&mut self, by: isize, picture: &TopPicture) {
        let Some(table) = table(self, picture) else {
            let most = picture.lines.len().saturating_sub(1);
            let place = self.place_mut();
            place.above_end = place
                .above_end
                .saturating_add_signed(by.saturating_neg())
                .min(most);
            return;
        };
        let last = table.rows.len().saturating_sub(1);
        let at = self.row(&table).saturating_add_signed(by).min(last);
        self.place_mut().chosen = table.rows.get(at).map(|row| row.key.clone());
    }

    /// The number of the row that is chosen. One that has gone leaves the first.
    pub fn row(&self, table: &TopTable) -> usize {
        let chosen = self.place().chosen.as_deref();
        let is_chosen = |key: &str| Some(key) == chosen;
        table
            .rows
            .iter()
            .position(|row| is_chosen(&row.key))
            .unwrap_or(0)
    }

    fn chosen_key(&self, picture: &TopPicture) -> Option<String> {
        let table = table(self, picture)?;
        table.rows.get(self.row(&table)).map(|row| row.key.clone())
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => (self.typing, self.filter) = (false, String::new()),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) if self.filter.len() < 64 => self.filter.push(c),
            _ => {}
        }
    }

    fn next_tab(&self) -> Screen {
        match self.places[0].screen {
            Screen::Cluster => Screen::Jobs,
            Screen::Jobs => Screen::Gpus,
            _ => Screen::Cluster,
        }
    }

    fn begin(&mut self, screen: Screen) -> Action {
        self.filter.clear();
        self.places = vec![TopPlace::new(screen)];
        Action::Ask
    }

    fn go(&mut self, screen: Screen) -> Action {
        self.filter.clear();
        self.places.push(TopPlace::new(screen));
        Action::Ask
    }

    /// Takes the filter back first.
    fn out(&mut self) -> Action {
        if !self.filter.is_empty() {
            self.filter.clear();
        } else if self.places.len() > 1 {
            self.places.pop();
            return Action::Ask;
        }
        Action::Draw
    }

    fn enter(&mut self, picture: &TopPicture) -> Action {
        let Some(key) = self.chosen_key(picture) else {
            return Action::Draw;
        };
        match &self.place().screen {
            // What runs on a node is in jobs.
            Screen::Cluster | Screen::Gpus => {
                let running = picture.nodes.iter().find(|node| node.id == key);
                let job =
                    running.and_then(|node| Some(node.load.as_ref()?.jobs.first()?.job.clone()));
                match job {
                    Some(job) => self.go(Screen::Job(job)),
                    None => Action::Draw,
                }
            }
            Screen::Jobs => self.go(Screen::Job(key)),
            Screen::Job(_) => self.log(picture),
            Screen::Log { .. } | Screen::Explanation { .. } => Action::Draw,
        }
    }

    fn log(&mut self, picture: &TopPicture) -> Action {
        let (Screen::Job(job), Some(task)) = (&self.place().screen, self.chosen_key(picture))
        else {
            return Action::Draw;
        };
        let (job, Ok(task)) = (job.clone(), task.parse()) else {
            return Action::Draw;
        };
        self.go(Screen::Log { job, task })
    }

    fn explain(&mut self, picture: &TopPicture) -> Action {
        let chosen = self.chosen_key(picture);
        match (&self.place().screen, chosen) {
            (Screen::Jobs, Some(job)) => self.go(Screen::Explanation { job, task: None }),
            (Screen::Job(job), chosen) => {
                let (job, task) = (job.clone(), chosen.and_then(|key| key.parse().ok()));
                self.go(Screen::Explanation { job, task })
            }
            _ => Action::Draw,
        }
    }

    fn sort_by_next(&mut self, picture: &TopPicture) {
        let Some(columns) = table(self, picture).map(|table| table.head.len()) else {
            return;
        };
        let place = self.place_mut();
        place.sort = match place.sort {
            None => Some(0),
            Some(column) if column + 1 < columns => Some(column + 1),
            Some(_) => None,
        };
    }
}
