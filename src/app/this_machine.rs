//! This machine as the settings present it.

use super::{gpus::Gpus, history::LoadHistory, machine, settings::Settings};
use nodectl_ports::{DiskHealth, Machine, Network};
use nodectl_types::{
    Admits, GpuKind, NodeId, NodeInfo, Resources,
    history::{LoadPage, LoadSpan},
};
use std::{collections::BTreeMap, sync::Arc};

/// This machine as the settings present it.
pub struct ThisMachine {
    id: NodeId,
    name: String,
    model: String,
    offered: Resources,
    labels: BTreeMap<String, String>,
    network: Arc<dyn Network>,
    gpus: Arc<Gpus>,
    disk: Arc<dyn DiskHealth>,
    history: Arc<LoadHistory>,
}

impl ThisMachine {
    pub fn new(
        id: NodeId,
        settings: &Settings,
        network: Arc<dyn Network>,
        gpus: Arc<Gpus>,
        disk: Arc<dyn DiskHealth>,
        history: Arc<LoadHistory>,
    ) -> Self {
        let machine = machine::describe();
        let detected = machine::detected();
        Self {
            id,
            name: settings.node.name.clone(),
            model: machine.model,
            offered: settings.node.offered(detected),
            labels: settings.node.labels.clone(),
            network,
            gpus,
            disk,
            history,
        }
    }
}

impl Machine for ThisMachine {
    fn describe(&self) -> NodeInfo {
        let gpus = self.gpus.list();
        let counted = gpus
            .iter()
            .filter(|gpu| gpu.kind != GpuKind::Software && gpu.details.rests.is_none())
            .count() as u32;
        NodeInfo {
            id: self.id,
            version: 0,
            name: self.name.clone(),
            software: env!("CARGO_PKG_VERSION").into(),
            model: self.model.clone(),
            addrs: self.network.addrs(),
            resources: Resources {
                gpu_milli: counted * 1000,
                ..self.offered.clone()
            },
            gpus,
            labels: self.labels.clone(),
            draining: false,
            closed: None,
            admits: Admits::default(),
            leaving: false,
            returning: false,
            problem: self.disk.problem(),
            seeks_gpus: self.gpus.are_sought(),
        }
    }

    fn load(&self) -> (u32, u64) {
        let load = machine::load();
        (load.load_milli, load.memory_used_bytes)
    }

    fn history(&self, span: LoadSpan, from: u64) -> LoadPage {
        self.history.page(span, from)
    }
}
