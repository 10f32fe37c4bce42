//! Between the records of the journal (`wire`, versioned) and those of the core (`logic`).

use nodectl_logic::Keep;
use nodectl_wire::journal::Record;

pub fn record(keep: Keep) -> Record {
    match keep {
        Keep::Spec(spec) => Record::Spec(spec),
        Keep::Head(head) => Record::Head(head),
        Keep::Task(record) => Record::Task(record),
    }
}

pub fn keep(record: Record) -> Keep {
    match record {
        Record::Spec(spec) => Keep::Spec(spec),
        Record::Head(head) => Keep::Head(head),
        Record::Task(record) => Keep::Task(record),
    }
}
