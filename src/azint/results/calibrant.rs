//! Where the Debye-Scherrer rings of well-known powders are. Cubic lattices only:
//! d = a / √(h² + k² + l²).

use serde::{Deserialize, Serialize};

/// A powder that detectors are calibrated with; lattice constants at 22.5 °C from NIST's
/// certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Calibrant {
    /// SRM 660c, primitive.
    LaB6,
    /// SRM 674b, face-centred.
    CeO2,
    /// SRM 640f, diamond.
    Si,
}

/// A ring: its Miller indices and lattice spacing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ring {
    pub hkl: [u32; 3],
    pub d_nm: f64,
}

impl Calibrant {
    pub const ALL: [Self; 3] = [Self::LaB6, Self::CeO2, Self::Si];

    pub fn name(self) -> &'static str {
        match self {
            Self::LaB6 => "LaB6",
            Self::CeO2 => "CeO2",
            Self::Si => "Si",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|calibrant| calibrant.name() == name)
    }

    /// The lattice constant a.
    pub fn lattice_nm(self) -> f64 {
        match self {
            Self::LaB6 => 0.415_682_6,
            Self::CeO2 => 0.541_165_3,
            Self::Si => 0.543_114_4,
        }
    }

    /// Rings by falling spacing, down to `least_d_nm`; those that coincide are one.
    pub fn rings(self, least_d_nm: f64) -> Vec<Ring> {
        let most = (self.lattice_nm() / least_d_nm.max(self.lattice_nm() / 40.0)).powi(2);
        let mut rings: Vec<Ring> = Vec::new();
        let limit = most.sqrt() as u32;
        for h in 0..=limit {
            for k in 0..=h {
                for l in 0..=k {
                    let sum = h * h + k * k + l * l;
                    let spacing = self.lattice_nm() / f64::from(sum.max(1)).sqrt();
                    let is_known = rings.iter().any(|ring| (ring.d_nm - spacing).abs() < 1e-9);
                    if sum > 0 && f64::from(sum) <= most && self.reflects(h, k, l) && !is_known {
                        rings.push(Ring {
                            hkl: [h, k, l],
                            d_nm: spacing,
                        });
                    }
                }
            }
        }
        rings.sort_by(|one, other| other.d_nm.total_cmp(&one.d_nm));
        rings
    }

    /// The extinction rules of the lattices (International Tables A).
    fn reflects(self, h: u32, k: u32, l: u32) -> bool {
        let is_face_centred = h % 2 == k % 2 && k % 2 == l % 2;
        match self {
            Self::LaB6 => true,
            Self::CeO2 => is_face_centred,
            Self::Si => is_face_centred && (h % 2 == 1 || (h + k + l).is_multiple_of(4)),
        }
    }
}

impl Ring {
    /// Its place on a radial axis of this unit (pyFAI's names); None where that needs a wavelength
    /// or has no formula here.
    pub fn position(&self, unit: &str, wavelength_m: Option<f64>) -> Option<f64> {
        let q = 2.0 * std::f64::consts::PI / self.d_nm;
        let two_theta = || {
            let sine = wavelength_m? * 1e9 / (2.0 * self.d_nm);
            (sine <= 1.0).then(|| 2.0 * sine.asin())
        };
        match unit {
            "q_nm^-1" => Some(q),
            "q_A^-1" => Some(q / 10.0),
            "2th_rad" => two_theta(),
            "2th_deg" => two_theta().map(f64::to_degrees),
            "d*2_nm^-2" => Some(self.d_nm.powi(-2)),
            "d*2_A^-2" => Some((self.d_nm * 10.0).powi(-2)),
            "d_nm" => Some(self.d_nm),
            "d_A" => Some(self.d_nm * 10.0),
            _ => None,
        }
    }
}
