//! Seeds that have shown something once, each with what it was. They draw other plans when `plan`
//! changes: what they showed is then in the other scenarios, if anywhere.

use crate::{
    plan::FaultPlan,
    runs::{RunOptions, run},
    script::Scenario,
};

pub const ALL: &[Scenario] = &[(
    "seeds::that_have_shown_something",
    that_have_shown_something,
)];

const SEEDS: &[(u64, &str)] = &[
    (19779, "the later of two results came without its file"),
    (20460, "the same"),
    (34066, "the same"),
    (34552, "the same"),
    (42919, "the same"),
    (18288, "a claim that was not written was known to others"),
    (21851, "a cancellation was not answered"),
    (27045, "records beside a lost specification were not known"),
    (29260, "what was being written at a handover was not known"),
    (62727, "the same, of a claim that was not written"),
    (32387, "a job that had gone on was as old as its first end"),
    (60812, "a coordinator ordered before members knew of it"),
    (
        157628,
        "a connection broke while its node was heard after a takeover",
    ),
    (
        128514,
        "a failure was old beside that of a later claim, and a task was run for ever",
    ),
    (
        201093,
        "what a rival was still writing was taken for a copy of it",
    ),
    (
        201802,
        "a holder of before that had given the job up was taken for a copy of it",
    ),
    (
        831,
        "a pool that others had ended for want of its host was taken for closed",
    ),
    (1653, "the same"),
    (
        1068,
        "a pool's submission was refused, and its workers looked for it for ever",
    ),
    (
        504695,
        "a claim was given up, and what it had written was on disk all the same",
    ),
    (
        513508,
        "what a leaving replica had not confirmed was told when it was back",
    ),
    (
        702069,
        "of two results of one epoch the one that counts more was lost, and the other not taken",
    ),
    (722039, "the same, of failures"),
    (
        721546,
        "the only record of a result was lost, and who did the task again was stopped",
    ),
    (
        742836,
        "what was lost stood in the way of an end that counts less, and was asked for for ever",
    ),
    (
        750319,
        "what was told before the order of rows was known was done again",
    ),
    (680, "a log was begun twice, beside cuts that overlapped"),
    (
        172,
        "who came back to a job of which it had a copy began it without who had begun it alone",
    ),
    (
        781228,
        "who was started anew within a cut knew only its own side, and began a log again",
    ),
    (
        803874,
        "of two nodes each knew the other's process to have ended, and both began an open job",
    ),
    (
        802133,
        "a result without files stood against a whole one of the same epoch, and both were lost",
    ),
    (
        783530,
        "a voter that was started anew did not know to be one, and could not go on alone",
    ),
    (
        910399,
        "a lost result was given up while another one was being written in its place",
    ),
    (
        920900,
        "a replica waited for ever for a result that only its own disk had had",
    ),
    (
        923699,
        "what another claim had drawn for an attempt was taken for what this one had",
    ),
    (
        945595,
        "an end that was on its way hid the row of its task from who took over",
    ),
    (
        946639,
        "a replica that had caught up did not count, since it could not write before",
    ),
    (
        1000887,
        "a replica whose disk hung was overrun each time it was connected again",
    ),
    (
        1033006,
        "a disk had lost many files, and each part of the results was waited for as long",
    ),
    (
        1037054,
        "what no disk had of a cancelled job was told of, and asked for, for ever",
    ),
    (
        1045914,
        "results before the second specification of a journal were not known",
    ),
    (
        1065208,
        "no replica could be made where nobody had what the tasks of a cancelled job were given",
    ),
    (
        1103488,
        "a claim to a log took entries that its own disk had not taken, and was made again",
    ),
    (
        1104805,
        "a result without its files was told, though another with its files had been reported",
    ),
    (
        1134679,
        "no replica took a result whose files its coordinator had not, and the job never ended",
    ),
    (
        1205930,
        "a result was lost and came again: what needed it and others did not wait for the others",
    ),
    (
        1241351,
        "a holder went while its results were pulled; who had got them meanwhile was not asked",
    ),
    (
        1253122,
        "a holder went while its files came; another that no head names had them, and was not asked",
    ),
    (
        1377012,
        "a task had begun before its node heard that it was to give it back, and began once more",
    ),
    (
        1451656,
        "what a coordinator had not counted was one message too large when it claimed the job again",
    ),
    (
        1456236,
        "a holder was not asked for its result, as another's was to come, whose node went",
    ),
    (
        1622039,
        "a second result was accepted before the holder was heard that had the first, told one",
    ),
    (
        1635888,
        "a task was done before it was stopped to be given back, and its result was thrown away",
    ),
    (
        1664977,
        "one node's failure was taken in, and the result of which another had told was forgotten",
    ),
    (
        1677071,
        "a result's files were lost, and what was to replace it waited for the holders to be heard",
    ),
    (
        1723382,
        "a disk was full when its node learned that a job is cancelled, and that was not written later",
    ),
    (
        1728461,
        "a job was done and then cancelled, a result of it was lost, and it was told to be done",
    ),
    (
        1738822,
        "a record that had turned bad gave way to one that counts less, and its node did not know",
    ),
    (
        1902177,
        "a coordinator that could not write gave its job up, and who held it was about to leave",
    ),
    (
        2034725,
        "a job was done, and cancelled; then results of it were lost, and it went on",
    ),
    (
        1912398,
        "a record turned bad that was written and did not count yet, and counted afterwards",
    ),
    (
        1983745,
        "a record turned bad, another took its place, and what waited for the end of its task did so for ever",
    ),
    (
        1985074,
        "a coordinator preferred a record it could not read to one whose files were missing, for ever",
    ),
    (
        2159109,
        "a replica's disk was full when the files came that tasks are given, and it said that it keeps the job",
    ),
    (
        2222827,
        "a task waited on a node while its coordinator, which was recovering, heard that it was done",
    ),
    (
        2273105,
        "a log's only voter named a second, crashed before its disk knew that, and both went on alone",
    ),
    (
        2659804,
        "a rival that gave way said that it had no copy, and what was told was done again",
    ),
    (
        2478619,
        "two nodes that had said goodbye came back to the smaller side, and a log began on both",
    ),
    (
        1898964,
        "who took over told of a result before it had its files from the one other node that had them",
    ),
    (
        1948114,
        "a pool's host was connected to its new coordinator once, beyond a cut, and passed for alive for ever",
    ),
    (
        3261825,
        "a failed job that had lost results went on, though its cancellation was confirmed",
    ),
    (
        2927454,
        "a result that was whole elsewhere counted less than one of the same epoch whose files were lost",
    ),
    (
        2738487,
        "what was told of a job that was submitted again gave way to its first beginning",
    ),
];

pub fn that_have_shown_something() {
    for (seed, what) in SEEDS {
        let findings = run(FaultPlan::draw(*seed), &RunOptions::default()).findings;
        assert!(findings.is_empty(), "seed {seed} ({what}): {findings:?}");
    }
}
