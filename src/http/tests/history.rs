//! Load over time, and metrics.

use super::*;
use nodectl_types::history::{LoadPage, LoadSpan, MACHINE_SERIES};

#[tokio::test]
async fn metrics_come_as_text() {
    let node = FakeNode::start(|query| match query {
        Query::Nodes => Ok(Answer::Nodes(vec![
            member(1, "alpha", true),
            member(2, "away", false),
        ])),
        Query::Jobs => Ok(Answer::Jobs(vec![head(7, "t", 1)])),
        Query::Node(_, NodeQuery::Load) => Ok(Answer::Load(NodeLoad {
            failed: 3,
            ..NodeLoad::default()
        })),
        Query::Node(_, NodeQuery::History { .. }) => Ok(Answer::History(LoadPage::default())),
        _ => Err(QueryError::Leaving),
    })
    .await;
    let text = node.client.metrics().await.unwrap();
    for line in [
        "nodectl_members{state=\"away\"} 1\n",
        "nodectl_results_total{outcome=\"failed\"} 3\n",
        "# TYPE nodectl_jobs gauge\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(
        !text.contains("nodectl_node_cpu_ratio"),
        "nothing was measured"
    );
}

#[tokio::test]
async fn a_nodes_load_comes_page_by_page() {
    let rows = |first: u64, count: u64| {
        let series: Vec<_> = (first..first + count).map(|row| Some(row as f32)).collect();
        LoadPage {
            first,
            end: 1500,
            end_ms: 7,
            machine: vec![series; MACHINE_SERIES.len()],
            gpus: Vec::new(),
        }
    };
    let node = FakeNode::start(move |query| match query {
        Query::Nodes => Ok(Answer::Nodes(vec![
            member(1, "alpha", true),
            member(2, "away", false),
        ])),
        Query::Node(node, NodeQuery::History { .. }) if *node == NodeId([2; 32]) => {
            Err(QueryError::NoNode(*node))
        }
        Query::Node(
            _,
            NodeQuery::History {
                from,
                span: LoadSpan::Day,
            },
        ) => {
            let first = 1500.min(700.max(*from));
            Ok(Answer::History(rows(first, (1500 - first).min(500))))
        }
        // One that always has more, as a node that is started again and again would.
        Query::Node(_, NodeQuery::History { from, .. }) => Ok(Answer::History(LoadPage {
            end: u64::MAX,
            ..rows(*from, 1)
        })),
        _ => Err(QueryError::Leaving),
    })
    .await;
    let history = node.client.history("alpha", "24h", None).await.unwrap();
    assert_eq!(
        (history.node.as_str(), history.step_s, history.end_ms),
        ("alpha", 10, 7)
    );
    assert_eq!(history.series.cpu.len(), 800);
    assert_eq!(history.series.tasks_queued[799], Some(1499.0));
    let newest = node.client.history("alpha", "24h", Some(3)).await.unwrap();
    assert_eq!(
        newest.series.cpu,
        [Some(1497.0), Some(1498.0), Some(1499.0)]
    );
    let endless = node.client.history("alpha", "15m", None).await.unwrap();
    assert!(endless.series.cpu.len() <= 3);
    for (asked, span, status) in [
        ("away", "15m", 404),
        ("nobody", "15m", 404),
        ("alpha", "7d", 400),
    ] {
        let (found, error) = refused(node.client.history(asked, span, None).await);
        assert_eq!(found, status, "{error}");
    }
}
