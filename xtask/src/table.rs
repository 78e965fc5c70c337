//! Tables that people read and that Markdown takes.

/// A table of Markdown whose columns are aligned; the first row is its head.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (place, row) in rows.iter().enumerate() {
        for (cell, width) in row.iter().zip(&widths) {
            text += &format!("| {cell:width$} ");
        }
        text += "|\n";
        if place == 0 {
            for width in &widths {
                text += &format!("|{}", "-".repeat(width + 2));
            }
            text += "|\n";
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let text = table(&[row(["a", "long"]), row(["wide", "µ"])]);
        assert_eq!(text, "| a    | long |\n|------|------|\n| wide | µ    |\n");
    }
}
