//go:build tools

// Pins Prometheus 3, whose OTLP receiver the exporter is checked against.
package tools

import _ "github.com/prometheus/prometheus/cmd/prometheus"
