// Prints the Prometheus name of each OpenTelemetry metric that it reads.
//
// A line of input is NAME, UNIT and TYPE (gauge, counter or histogram), separated by tabs; a line of output is the
// name by the standard translation of OTLP, the one of Prometheus' receiver and of the Collector's exporters.
package main

import (
	"bufio"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/prometheus/otlptranslator"
)

func main() {
	types := map[string]otlptranslator.MetricType{
		"counter":   otlptranslator.MetricTypeMonotonicCounter,
		"gauge":     otlptranslator.MetricTypeGauge,
		"histogram": otlptranslator.MetricTypeHistogram,
	}
	namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fields := strings.Split(lines.Text(), "\t")
		if len(fields) != 3 {
			log.Fatalf("%q is not NAME, UNIT and TYPE", lines.Text())
		}
		kind, isKnown := types[fields[2]]
		if !isKnown {
			log.Fatalf("%q is not a type", fields[2])
		}
		name, err := namer.Build(otlptranslator.Metric{Name: fields[0], Unit: fields[1], Type: kind})
		if err != nil {
			log.Fatalf("%s: %v", fields[0], err)
		}
		fmt.Println(name)
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
}
