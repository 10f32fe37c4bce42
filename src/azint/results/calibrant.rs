//! Where the Debye-Scherrer rings of well-known powders are: spacings of cubic, hexagonal and
//! lamellar lattices, and which of them reflect (International Tables A).

use serde::{Deserialize, Serialize};

/// A powder that detectors are calibrated with, by pyFAI's name of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Calibrant {
    LaB6,
    CeO2,
    Si,
    Al,
    Au,
    NaCl,
    Ni,
    Pt,
    Diamond,
    AgBh,
    AlphaAl2O3,
    Cr2O3,
}

/// A lattice, its constants in nm.
#[derive(Clone, Copy)]
enum Lattice {
    Primitive(f64),
    FaceCentred(f64),
    Diamond(f64),
    /// Space group R-3c in hexagonal axes: a and c.
    Corundum(f64, f64),
    /// Layers at this distance.
    Lamellar(f64),
}

/// Rings are listed down to this share of the longest lattice constant.
const LEAST_SHARE: f64 = 1.0 / 40.0;

/// A ring: its Miller indices and lattice spacing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ring {
    pub hkl: [u32; 3],
    pub d_nm: f64,
}

impl Calibrant {
    pub const ALL: [Self; 12] = [
        Self::LaB6,
        Self::CeO2,
        Self::Si,
        Self::Al,
        Self::Au,
        Self::NaCl,
        Self::Ni,
        Self::Pt,
        Self::Diamond,
        Self::AgBh,
        Self::AlphaAl2O3,
        Self::Cr2O3,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::LaB6 => "LaB6",
            Self::CeO2 => "CeO2",
            Self::Si => "Si",
            Self::Al => "Al",
            Self::Au => "Au",
            Self::NaCl => "NaCl",
            Self::Ni => "Ni",
            Self::Pt => "Pt",
            Self::Diamond => "diamond",
            Self::AgBh => "AgBh",
            Self::AlphaAl2O3 => "alpha_Al2O3",
            Self::Cr2O3 => "Cr2O3",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|calibrant| calibrant.name() == name)
    }

    /// NIST's certificates at 22.5 °C have the constants of SRM 660c, 674b and 640f; the others are
    /// those that pyFAI takes, of AgBh from doi:10.1107/S0021889899012388.
    fn lattice(self) -> Lattice {
        match self {
            Self::LaB6 => Lattice::Primitive(0.415_682_6),
            Self::CeO2 => Lattice::FaceCentred(0.541_165_3),
            Self::Si => Lattice::Diamond(0.543_114_4),
            Self::Al => Lattice::FaceCentred(0.404_95),
            Self::Au => Lattice::FaceCentred(0.407_82),
            Self::NaCl => Lattice::FaceCentred(0.564_01),
            Self::Ni => Lattice::FaceCentred(0.352_387),
            Self::Pt => Lattice::FaceCentred(0.392_31),
            Self::Diamond => Lattice::Diamond(0.356_68),
            Self::AgBh => Lattice::Lamellar(5.838),
            Self::AlphaAl2O3 => Lattice::Corundum(0.475_70, 1.298_77),
            Self::Cr2O3 => Lattice::Corundum(0.495_90, 1.359_59),
        }
    }

    /// Rings by falling spacing, down to `least_d_nm`; those that coincide are one.
    pub fn rings(self, least_d_nm: f64) -> Vec<Ring> {
        let lattice = self.lattice();
        let [a, c] = lattice.constants_nm();
        let least = least_d_nm.max(a.max(c) * LEAST_SHARE);
        let most = |constant: f64| (constant * (1.0 + 1e-9) / least * 2.0 / 3f64.sqrt()) as u32;
        let mut rings: Vec<Ring> = Vec::new();
        for h in 0..=most(a) {
            for k in 0..=h {
                for l in 0..=lattice.last_index(k, most(c)) {
                    let hkl = [h, k, l];
                    let d_nm = lattice.spacing_nm(hkl);
                    let is_seen = d_nm.is_finite() && d_nm >= least * (1.0 - 1e-9);
                    let is_known = || rings.iter().any(|ring| (ring.d_nm - d_nm).abs() < 1e-9);
                    if is_seen && lattice.reflects(hkl) && !is_known() {
                        rings.push(Ring { hkl, d_nm });
                    }
                }
            }
        }
        rings.sort_by(|one, other| other.d_nm.total_cmp(&one.d_nm));
        rings
    }
}

impl Lattice {
    /// a and c.
    fn constants_nm(self) -> [f64; 2] {
        match self {
            Self::Primitive(a) | Self::FaceCentred(a) | Self::Diamond(a) => [a, a],
            Self::Corundum(a, c) => [a, c],
            Self::Lamellar(c) => [0.0, c],
        }
    }

    /// The largest l beside an index k: of cubic lattices the order of indices does not matter.
    fn last_index(self, k: u32, most: u32) -> u32 {
        match self {
            Self::Primitive(_) | Self::FaceCentred(_) | Self::Diamond(_) => k,
            Self::Corundum(..) | Self::Lamellar(_) => most,
        }
    }

    /// Infinite for 000.
    fn spacing_nm(self, hkl: [u32; 3]) -> f64 {
        let [h, k, l] = hkl.map(f64::from);
        match self {
            Self::Primitive(a) | Self::FaceCentred(a) | Self::Diamond(a) => {
                a / (h * h + k * k + l * l).sqrt()
            }
            Self::Corundum(a, c) => {
                let across = 4.0 / 3.0 * (h * h + h * k + k * k) / (a * a);
                (across + l * l / (c * c)).sqrt().recip()
            }
            Self::Lamellar(c) => c / l,
        }
    }

    /// The extinction rules, those of R-3c for one of the two orders of h and k.
    fn reflects(self, [h, k, l]: [u32; 3]) -> bool {
        let is_face_centred = h % 2 == k % 2 && k % 2 == l % 2;
        match self {
            Self::Primitive(_) => true,
            Self::FaceCentred(_) => is_face_centred,
            Self::Diamond(_) => is_face_centred && (h % 2 == 1 || (h + k + l).is_multiple_of(4)),
            Self::Corundum(..) => {
                let is_obverse =
                    (2 * h + k + l).is_multiple_of(3) || (h + 2 * k + l).is_multiple_of(3);
                is_obverse && (k > 0 || l.is_multiple_of(2))
            }
            Self::Lamellar(_) => (h, k) == (0, 0),
        }
    }
}

impl Ring {
    /// The place on a radial axis of this unit (pyFAI's names); None where that needs a wavelength
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
