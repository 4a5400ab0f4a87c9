// Renders a Helm chart to stdout as `helm template NAME CHART -n NAMESPACE -f VALUES` does: the same template language,
// functions and rules, without Helm's client of Kubernetes, whose libraries take minutes to compile. A chart without
// subcharts and hooks; `lookup` finds nothing, as there.
//
// usage: render NAME NAMESPACE CHART [VALUES]
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) < 4 {
		fail(errors.New("usage: render NAME NAMESPACE CHART [VALUES]"))
	}
	folder := os.Args[3]
	values := read(filepath.Join(folder, "values.yaml"))
	for _, path := range os.Args[4:] {
		values = merged(values, read(path))
	}
	described := map[string]any{}
	for key, value := range read(filepath.Join(folder, "Chart.yaml")) {
		described[strings.ToUpper(key[:1])+key[1:]] = value
	}
	root := map[string]any{
		"Values":  values,
		"Chart":   described,
		"Release": map[string]any{"Name": os.Args[1], "Namespace": os.Args[2], "Service": "Helm", "IsInstall": true},
	}
	paths, err := filepath.Glob(filepath.Join(folder, "templates", "*"))
	fail(err)
	sort.Strings(paths)
	all := template.New("chart").Option("missingkey=zero")
	all.Funcs(functions(all))
	for _, path := range paths {
		text, err := os.ReadFile(path)
		fail(err)
		template.Must(all.New(filepath.Base(path)).Parse(string(text)))
	}
	for _, path := range paths {
		if strings.HasSuffix(path, ".yaml") {
			fmt.Printf("---\n# Source: %s\n%s\n", filepath.Base(path), rendered(all, filepath.Base(path), root))
		}
	}
}

func rendered(all *template.Template, name string, data any) string {
	var out bytes.Buffer
	fail(all.ExecuteTemplate(&out, name, data))
	return strings.ReplaceAll(out.String(), "<no value>", "")
}

// Sprig's functions but those that read the environment, and Helm's own.
func functions(all *template.Template) template.FuncMap {
	found := sprig.TxtFuncMap()
	delete(found, "env")
	delete(found, "expandenv")
	found["include"] = func(name string, data any) (string, error) {
		var out bytes.Buffer
		err := all.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	found["toYaml"] = func(value any) (string, error) {
		out, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(out), "\n"), err
	}
	found["required"] = func(message string, value any) (any, error) {
		if value == nil || value == "" {
			return value, errors.New(message)
		}
		return value, nil
	}
	found["lookup"] = func(string, string, string, string) map[string]any { return map[string]any{} }
	return found
}

// Maps are merged, all else is replaced, and null takes a default away.
func merged(under, over map[string]any) map[string]any {
	for key, value := range over {
		above, isMap := value.(map[string]any)
		below, wasMap := under[key].(map[string]any)
		switch {
		case value == nil:
			delete(under, key)
		case isMap && wasMap:
			under[key] = merged(below, above)
		default:
			under[key] = value
		}
	}
	return under
}

func read(path string) map[string]any {
	text, err := os.ReadFile(path)
	fail(err)
	found := map[string]any{}
	fail(yaml.Unmarshal(text, &found))
	return found
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
