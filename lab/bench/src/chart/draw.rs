//! Draws charts, by plotters.

use anyhow::{Result, anyhow, bail};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Bars, Better};

/// A colour a series. The first nine stay apart for colour-blind readers and in grey.
const COLOURS: [RGBColor; 16] = [
    RGBColor(0x99, 0x99, 0x99),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0xf0, 0xe4, 0x42),
    RGBColor(0x33, 0x33, 0x33),
    RGBColor(0x8b, 0x45, 0x13),
    RGBColor(0x7b, 0x2d, 0x8e),
    RGBColor(0x99, 0xcc, 0x33),
    RGBColor(0xb2, 0x18, 0x2b),
    RGBColor(0x00, 0x33, 0x66),
    RGBColor(0x80, 0xcd, 0xc1),
    RGBColor(0xff, 0x9a, 0xa2),
];

const SIZE: (u32, u32) = (960, 480);

/// Where bars are drawn.
type Plane<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The chart as the text of an SVG file.
pub fn svg(bars: &Bars) -> Result<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        bars.draw(&root).map_err(|error| anyhow!("can't draw: {error:#}"))?;
    }
    Ok(text)
}

impl Better {
    fn words(self) -> &'static str {
        match self {
            Self::Lower => "lower is better",
            Self::Higher => "higher is better",
        }
    }
}

impl Bars {
    fn highest(&self) -> f64 {
        let values = self.series.iter().flat_map(|s| s.values.iter().flatten());
        let highest = values.map(|v| v.q3).fold(self.reference.unwrap_or(0.0), f64::max);
        // Above the highest bar there is room for the legend.
        if highest > 0.0 { highest * 1.3 } else { 1.0 }
    }

    fn draw(&self, root: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<()> {
        root.fill(&WHITE)?;
        let text = |size: i32| ("sans-serif", size).into_font();
        let centred = |size: i32| TextStyle::from(text(size)).pos(Pos::new(HPos::Center, VPos::Top));
        let middle = SIZE.0 as i32 / 2;
        for (line, y, size) in [(&self.title, 10, 20), (&self.subtitle, 36, 12)] {
            root.draw(&Text::new(line.clone(), (middle, y), centred(size)))?;
        }
        let count = self.groups.len().max(1);
        let mut chart = ChartBuilder::on(root)
            .margin(12)
            .margin_top(58)
            .x_label_area_size(50)
            .y_label_area_size(70)
            .build_cartesian_2d(0f64..count as f64, 0f64..self.highest())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(0)
            .y_desc(format!("{} ({})", self.y_label, self.better.words()))
            .x_desc(self.x_label.as_str())
            .axis_desc_style(text(14))
            .label_style(text(12))
            .draw()?;
        self.draw_bars(&mut chart)?;
        if let Some(value) = self.reference {
            let line = vec![(0.0, value), (count as f64, value)];
            chart.draw_series(std::iter::once(PathElement::new(line, BLACK.stroke_width(1))))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.4))
            .label_font(text(12))
            .draw()?;
        for (group, name) in self.groups.iter().enumerate() {
            let (x, y) = chart.backend_coord(&(group as f64 + 0.5, 0.0));
            root.draw(&Text::new(name.clone(), (x, y + 8), centred(12)))?;
        }
        Ok(root.present()?)
    }

    fn draw_bars(&self, chart: &mut Plane<'_, '_>) -> Result<()> {
        let width = 0.8 / self.series.len().max(1) as f64;
        // Grey is the floor's in every chart.
        let first = usize::from(self.series.first().is_some_and(|series| series.name != "floor"));
        let (asked, most) = (first + self.series.len(), COLOURS.len());
        if asked > most {
            bail!("{asked} series: a chart has colours for {most}; choose fewer");
        }
        for (index, (series, colour)) in self.series.iter().zip(&COLOURS[first..]).enumerate() {
            let left = |group: usize| group as f64 + 0.1 + index as f64 * width;
            let present = || {
                series
                    .values
                    .iter()
                    .enumerate()
                    .filter_map(|(group, value)| Some((left(group), value.as_ref()?)))
            };
            chart
                .draw_series(present().map(|(x, value)| {
                    Rectangle::new([(x, 0.0), (x + width * 0.92, value.median)], colour.filled())
                }))?
                .label(series.name.clone())
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
            chart.draw_series(present().map(|(x, value)| {
                let at = x + width * 0.46;
                PathElement::new(vec![(at, value.q1), (at, value.q3)], BLACK.stroke_width(1))
            }))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
