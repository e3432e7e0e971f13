//! Colours of lanes, of warps and groups of banks, and of bank conflicts.

/// Red, green and blue, light enough for text in [`INK`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Color(pub [u8; 3]);

/// The colour of text.
pub const INK: Color = Color([0x22, 0x22, 0x22]);

/// Eight hues, one for each row of an 8x8 matrix and for each group of four banks.
const HUES: [Color; 8] = [
    Color([0x2f, 0x6f, 0xb7]),
    Color([0xf2, 0x8e, 0x2b]),
    Color([0x3a, 0x98, 0x48]),
    Color([0xe0, 0x4f, 0x52]),
    Color([0x8c, 0x5f, 0xb5]),
    Color([0x1f, 0xa5, 0xa5]),
    Color([0xe3, 0xb8, 0x1a]),
    Color([0x92, 0x6a, 0x55]),
];

impl Color {
    /// A hue for each four lanes `4g..4g + 4`, paler from lane to lane.
    pub fn lane(lane: u32) -> Self {
        let white = 0.36 + 0.14 * f64::from(lane % 4);
        HUES[lane as usize / 4].tint(white)
    }

    /// A hue for each of 8 neighbours: warps, tiles, groups of 4 banks.
    pub fn hue(number: u32) -> Self {
        HUES[number as usize % 8].tint(0.4)
    }

    /// A paler [`hue`](Self::hue).
    pub fn pale_hue(number: u32) -> Self {
        HUES[number as usize % 8].tint(0.75)
    }

    /// From green for no conflict to red for one of eight ways or more.
    pub fn conflict(wavefronts: u64, minimum: u64) -> Self {
        let [green, yellow, orange, red] =
            [(2, 0.45), (6, 0.45), (1, 0.45), (3, 0.2)].map(|(hue, white)| HUES[hue].tint(white));
        match wavefronts as f64 / minimum as f64 {
            ways if ways <= 1.0 => green,
            ways if ways <= 2.0 => yellow,
            ways if ways <= 4.0 => orange,
            _ => red,
        }
    }

    /// The colour in the form `#rrggbb`.
    pub fn hex(self) -> String {
        let [red, green, blue] = self.0;
        format!("#{red:02x}{green:02x}{blue:02x}")
    }

    /// Mixes in a share of white.
    fn tint(self, white: f64) -> Self {
        let mix = |part: u8| (f64::from(part) * (1.0 - white) + 255.0 * white).round() as u8;
        Color(self.0.map(mix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_lane_and_every_group_of_banks_has_its_colour() {
        let lanes: HashSet<_> = (0..32).map(|lane| Color::lane(lane).0).collect();
        let banks: HashSet<_> = (0..8).map(|group| Color::hue(group).0).collect();
        assert_eq!((lanes.len(), banks.len()), (32, 8));
    }

    /// W3C asks for a contrast of 4.5 to 1.
    #[test]
    fn text_can_be_read_on_every_colour() {
        let luminance = |color: Color| {
            let linear = color.0.map(|part| {
                let part = f64::from(part) / 255.0;
                if part <= 0.04045 {
                    part / 12.92
                } else {
                    ((part + 0.055) / 1.055).powf(2.4)
                }
            });
            0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        };
        let lanes = (0..32).map(Color::lane);
        let ways = [1, 2, 4, 8].map(|ways| Color::conflict(ways, 1));
        for color in lanes.chain((0..8).map(Color::hue)).chain(ways) {
            let contrast = (luminance(color) + 0.05) / (luminance(INK) + 0.05);
            assert!(contrast >= 4.5, "{}: {contrast}", color.hex());
        }
    }
}
