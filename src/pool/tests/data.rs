//! Data of tasks, and the nodes that have it.

use super::*;

#[tokio::test]
async fn a_task_goes_to_its_data_and_what_is_not_needed_any_more_to_its_node() {
    let paper = Paper::new();
    let (mut client, token, _serving) = paper.open("").await;
    let there = NodeId([9; 32]);
    let near = [&there.0[..], &(1u64 << 20).to_le_bytes()].concat();
    let release = |node: NodeId, what: &[u8]| [&node.0[..], what].concat();
    // Nobody is there yet.
    client
        .send(FromClient::Release, 0, &release(there, b"first"))
        .await;
    let mut here = paper.worker(ME, token).await;
    client
        .status(r#"{"workers":1,"nodes":1,"starting":0}"#)
        .await;
    let mut beside = paper.worker(there, token).await;
    assert_eq!(beside.message(ToWorker::Release).await.1, b"first");
    client.send(FromClient::Near, 1, &near).await;
    client.frame(TELL, FromClient::Run, 1, b"x").await;
    beside.until(ToWorker::Run).await;
    let (task, node) = client.message(ToClient::Started).await;
    assert_eq!((task, node), (1, there.to_string().into_bytes()));
    client
        .send(FromClient::Release, 0, &release(ME, b"second"))
        .await;
    assert_eq!(here.message(ToWorker::Release).await.1, b"second");
}
