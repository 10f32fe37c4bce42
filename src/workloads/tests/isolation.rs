//! What tasks are kept from, and the secrets that they get.

use super::{error, plan_one};
use nodectl_types::Isolation;

#[test]
fn what_a_job_does_not_say_is_as_nodes_are_set() {
    assert_eq!(
        plan_one("command = [\"x\"]").draft.work.isolation,
        Isolation::default()
    );
    let said = plan_one(
        "command = [\"x\"]\n[isolation]\nhides_node = false\ncore_dumps = true\nnetwork = false\nread_only = true",
    );
    let expected = Isolation {
        setuid: None,
        hides_node: Some(false),
        core_dumps: true,
        offline: true,
        read_only: true,
        image: None,
    };
    assert_eq!(said.draft.work.isolation, expected);
    assert!(
        !plan_one("command = [\"x\"]\n[isolation]\nnetwork = true")
            .draft
            .work
            .isolation
            .offline
    );
    assert_eq!(
        plan_one("command = [\"x\"]\nsecrets = [\"A\", \"B_1\"]")
            .draft
            .work
            .secrets,
        ["A", "B_1"]
    );
}

#[test]
fn what_cannot_be_is_told_at_its_place() {
    for (text, message) in [
        (
            "[isolation]\nsetuid = true\nhides_node = true",
            "nothing can be hidden",
        ),
        (
            "[isolation]\nimage = \"--privileged\"",
            "a podman image such as",
        ),
        ("[isolation]\nnetwork = \"none\"", "`true` or `false`"),
        ("[isolation]\nreadonly = true", "did you mean `read_only`"),
        ("secrets = [\"hf-token\"]", "cannot be the name of a secret"),
        ("secrets = [\"A\", \"A\"]", "named twice"),
        (
            "secrets = [\"A\"]\n[isolation]\nimage = \"a.sif\"",
            "not handed into containers",
        ),
    ] {
        let error = error(&format!("command = [\"x\"]\n{text}"));
        assert!(error.contains(message), "{text}: {error}");
    }
    let error = error("worker = \"count.py:Count\"\n[isolation]\nimage = \"a.sif\"");
    assert!(error.contains("only commands"), "{error}");
}
