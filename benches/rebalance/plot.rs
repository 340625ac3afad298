//! The picture: every pause as a dot, with the bounds.

use std::error::Error;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::bounds;
use crate::figures::EventFigures;
use crate::random::mix;
use crate::report::Report;
use crate::run::Event;

const SIZE: (u32, u32) = (1260, 600);

/// The least pause that is drawn; shorter ones lie on this line, for the axis is logarithmic.
const LEAST_MS: f64 = 0.5;

/// A kind of dots.
struct Kind {
    name: &'static str,
    colour: RGBColor,
    /// Where it lies beside the middle of its size, in sizes.
    offset: f64,
    of: fn(&EventFigures) -> &[f64],
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "moved: not served",
        colour: RGBColor(0xC0, 0x39, 0x2B),
        offset: -0.27,
        of: |figures| &figures.moved_ms,
    },
    Kind {
        name: "unmoved: longest gap above the usual spacing",
        colour: RGBColor(0x1F, 0x6F, 0xB2),
        offset: 0.0,
        of: |figures| &figures.unmoved_ms,
    },
    Kind {
        name: "the same at rest: the machine's own noise",
        colour: RGBColor(0x8A, 0x8A, 0x8A),
        offset: 0.27,
        of: |figures| &figures.at_rest_ms,
    },
];

/// Draws the picture into a file.
pub(crate) fn draw(report: &Report, path: &Path) -> Result<(), Box<dyn Error + Send + Sync>> {
    let drawn = picture(report, path);
    drawn.map_err(|error| format!("{}: {error}", path.display()).into())
}

fn picture(report: &Report, path: &Path) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let title = "jetring: how long partitions pause when a member joins, leaves or crashes";
    root.draw_text(title, &("sans-serif", 22).into_text_style(&root), (20, 14))?;
    root.draw_text(&report.setting(), &("sans-serif", 14).into_text_style(&root), (20, 44))?;
    legend(&root)?;
    let (_, panels) = root.split_vertically(92);
    let panels = panels.split_evenly((1, Event::ALL.len()));
    let most = report.session_timeout_ms + bounds::CRASH_MS;
    for (panel, event) in panels.iter().zip(Event::ALL) {
        draw_panel(panel, report, event, most * 2.0)?;
    }
    root.present()?;
    Ok(())
}

fn legend(root: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Box<dyn Error>> {
    let style = ("sans-serif", 15).into_text_style(root);
    for (kind, left) in KINDS.iter().zip([26, 190, 540]) {
        root.draw(&Circle::new((left, 78), 5, kind.colour.filled()))?;
        root.draw_text(kind.name, &style, (left + 12, 70))?;
    }
    root.draw(&PathElement::new([(860, 78), (890, 78)], BLACK.stroke_width(1)))?;
    root.draw_text("bound; a short line across dots: their p50", &style, (900, 70))?;
    Ok(())
}

fn draw_panel(
    panel: &DrawingArea<SVGBackend<'_>, Shift>,
    report: &Report,
    event: Event,
    most: f64,
) -> Result<(), Box<dyn Error>> {
    let right = report.sizes.len() as f64 - 0.5;
    let title = match event {
        Event::Join => "join: 3 members become 4",
        Event::Leave => "leave: SIGTERM, 4 members become 3",
        Event::Crash => "crash: SIGKILL, 4 members become 3",
    };
    let mut chart = ChartBuilder::on(panel)
        .caption(title, ("sans-serif", 17))
        .margin_left(10)
        .margin_right(14)
        .margin_bottom(8)
        .x_label_area_size(46)
        .y_label_area_size(62)
        .build_cartesian_2d(-0.5..right, (LEAST_MS..most).log_scale())?;
    let sizes = &report.sizes;
    let name = |at: &f64| {
        let whole = (at - at.round()).abs() < 1e-6 && at.round() >= 0.0;
        let size = sizes.get(at.round() as usize).filter(|_| whole);
        size.map(|size| size.partitions.to_string()).unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(sizes.len() + 1)
        .x_label_formatter(&name)
        .x_desc("partitions")
        .y_desc("milliseconds (logarithmic)")
        .y_label_formatter(&|ms| format!("{ms}"))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 15))
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(BLACK.mix(0.12))
        .draw()?;
    for (bound, words) in lines(event, report.session_timeout_ms) {
        let text = ("sans-serif", 13).into_font().color(&BLACK);
        chart.draw_series([PathElement::new([(-0.5, bound), (right, bound)], BLACK.stroke_width(1))])?;
        chart.draw_series([Text::new(words, (-0.48, bound * 1.28), text)])?;
    }
    let of_event = sizes
        .iter()
        .map(|size| size.events.iter().find(|figures| figures.event == event));
    for (figures, middle) in of_event.flatten().zip((0..).map(f64::from)) {
        for kind in &KINDS {
            let centre = middle + kind.offset;
            let dots = (kind.of)(figures);
            // Beside each other in an order that is the same each time.
            let place = |index: usize| centre + (mix(index as u64) % 1000) as f64 / 1000.0 * 0.2 - 0.1;
            chart.draw_series(dots.iter().enumerate().map(|(index, &ms)| {
                let at = (place(index), ms.max(LEAST_MS));
                Circle::new(at, 2, kind.colour.mix(0.45).filled())
            }))?;
            let mut sorted = dots.to_vec();
            sorted.sort_by(f64::total_cmp);
            if let Some(middle) = sorted.get(sorted.len().saturating_sub(1) / 2) {
                let ends = [
                    (centre - 0.12, middle.max(LEAST_MS)),
                    (centre + 0.12, middle.max(LEAST_MS)),
                ];
                chart.draw_series([PathElement::new(ends, kind.colour.stroke_width(3))])?;
            }
        }
    }
    Ok(())
}

/// The bounds of an event, in words.
fn lines(event: Event, session_timeout_ms: f64) -> Vec<(f64, String)> {
    let unmoved = (bounds::UNMOVED_MS, format!("unmoved: {} ms", bounds::UNMOVED_MS));
    match event {
        Event::Join => vec![
            (bounds::JOIN_ALL_MS, format!("moved: {} ms", bounds::JOIN_ALL_MS)),
            (bounds::JOIN_HALF_MS, format!("moved, p50: {} ms", bounds::JOIN_HALF_MS)),
            unmoved,
        ],
        Event::Leave => vec![unmoved],
        Event::Crash => {
            let bound = session_timeout_ms + bounds::CRASH_MS;
            vec![
                (bound, format!("moved: session timeout + {} ms", bounds::CRASH_MS)),
                unmoved,
            ]
        }
    }
}
