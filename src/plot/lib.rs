//! Pictures of results as SVG text, in one style. Numbers and words come in, a document goes out;
//! nothing here reads results or writes files. Start reading at `style`.
//!
//! | file | owns |
//! |---|---|
//! | `style` | fonts, colours, the frame that all pictures share |
//! | `axis` | numbers and words along an axis |
//! | `scatter` | a point for each result, coloured by a third value, the best one marked |
//! | `curves` | values over the epochs of a training |
//! | `confusion` | what samples of each class are taken for |
//! | `pattern` | a diffraction pattern and where its rings are expected |

mod axis;
mod confusion;
mod curves;
mod pattern;
mod scatter;
mod style;

pub use axis::{Coordinate, PlotAxis, number};
pub use confusion::{MOST_CLASSES, confusion};
pub use curves::{Curve, curves};
pub use pattern::Pattern;
pub use scatter::{PlotPoint, Scatter};
pub use style::DrawFailure;
